"""Prompts as text with log probabilities: in order, once, at their places in the text."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from proto.arrays import FLOAT32, pack
from proto.sampling_pb2 import LENGTH, SamplingParams
from proto.scheduler_pb2 import GenerateResponse, PromptScores, SequenceDelta
from proto.tokenizer_pb2 import TextChunk, TextRequest, TokenIds, TokenText
from tokenizer_svc.answers import prompt_scores
from tokenizer_svc.answers.prompt_scores import PromptText, text_of
from tokenizer_svc.model.tokenizer import TextModel

TEXT = "naïve café — 東京 and 😀! 0123456789"


def scores_of(tokens: list[int]) -> PromptScores:
    """Of each token a log probability and a rank that follow from it, and two alternatives."""
    return PromptScores(
        logprobs=pack([-token / 8 for token in tokens], FLOAT32),
        ranks=pack([token + 1 for token in tokens]),
        top_tokens=pack([each for token in tokens for each in (token, 5)]),
        top_logprobs=pack([each for token in tokens for each in (-token / 8, -100.0)], FLOAT32),
    )


def test_tokens_are_at_their_places(byte_level: TextModel, sentencepiece: TextModel) -> None:
    for model in (byte_level, sentencepiece):
        check_places(model)


def check_places(loaded: TextModel) -> None:
    tokens = loaded.encode("The quick fox. one", special=True)
    prompt = PromptText(tokens, loaded.every_token, loaded.plain_tokens, 0)
    (first,) = prompt.first()
    assert (first.text, first.rank, first.unseen, first.text_offset) == ("<s>", 0, True, 0)
    (rest,) = prompt.pieces(scores_of(tokens[1:]))
    assert prompt.first() == []
    assert [each.token_id for each in rest] == tokens[1:]
    assert [(each.rank, each.logprob) for each in rest] == [(token + 1, -token / 8) for token in tokens[1:]]
    assert [[top.token_id for top in each.top] for each in rest] == [[token, 5] for token in tokens[1:]]
    text = text_of(tokens, loaded.plain_tokens)
    assert text == "The quick fox. one"
    ends = [*(each.text_offset for each in rest[1:]), len(text)]
    spans = [text[each.text_offset : end] for each, end in zip(rest, ends, strict=True)]
    assert [each.text for each in rest] in (spans, [" " + spans[0], *spans[1:]]), "a first space is not shown"


@pytest.mark.parametrize("text", ["<s>the</s> lazy<think> fox</s>", "the</s>", "the"])
@pytest.mark.parametrize("delivered", [1, 3])
def test_special_tokens_are_where_the_client_wrote_them(
    byte_level: TextModel, text: str, delivered: int
) -> None:
    """The text has all tokens but the `<s>` that the tokenizer added."""
    _, *own = tokens = byte_level.encode(text, special=True)
    prompt = PromptText(tokens, byte_level.every_token, byte_level.plain_tokens, delivered, text)
    found = [each for piece in prompt.pieces(scores_of(tokens[delivered:])) for each in piece]
    lengths = [len(byte_level.every_token[token]) for token in own]
    places = [sum(lengths[:number]) for number in range(len(own))]
    if text.startswith("<s>"):
        places[0] = 3  # of two that are equal the first one counts
    assert [each.text_offset for each in found] == places[delivered - 1 :]


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch, byte_level: TextModel) -> None:
    monkeypatch.setattr(prompt_scores, "PIECE", 4)
    tokens = byte_level.encode(TEXT, special=False)
    prompt = PromptText(tokens, byte_level.every_token, byte_level.plain_tokens, 3)
    pieces = list(prompt.pieces(scores_of(tokens[3:])))
    assert {len(piece) for piece in pieces[:-1]} == {4}
    assert [each.token_id for piece in pieces for each in piece] == tokens[3:]


def scripted(lost_after: int | None = None) -> Any:
    """A scheduler that delivers the rest of the prompt, three tokens at once, then an answer."""

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        tokens = [int.from_bytes(start.prompt_tokens[at : at + 4], "little") for at in range(0, 10**4, 4)]
        tokens = tokens[: len(start.prompt_tokens) // 4]
        for number, begin in enumerate(range(max(1, start.scored_tokens), len(tokens), 3)):
            if number == lost_after:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "it died")
            yield GenerateResponse(prompt=scores_of(tokens[begin : begin + 3]), fingerprint="worker")
        answer = SequenceDelta(tokens=pack([9]), finish_reason=LENGTH)
        yield GenerateResponse(deltas=[answer], fingerprint="worker")

    return script


def ask(**more: Any) -> TextRequest:
    sampling = SamplingParams(prompt_logprobs=2)
    return TextRequest(**{"request_id": "r", "n": 1, "sampling": sampling, "text": TEXT, **more})


async def collect(stub: Any, request: TextRequest) -> list[TextChunk]:
    return [chunk async for chunk in stub.Generate(request)]


def scored(chunks: list[TextChunk]) -> list[TokenText]:
    return [each for chunk in chunks for each in chunk.prompt_logprobs]


@pytest.mark.parametrize("lost_after", [None, 0, 1, 2])
async def test_a_prompt_comes_once_although_schedulers_die(
    stub: Any, scheduler: Any, byte_level: TextModel, lost_after: int | None
) -> None:
    scheduler.scripts = [scripted(lost_after), scripted()] if lost_after is not None else [scripted()]
    chunks = await collect(stub, ask())
    tokens = byte_level.encode(TEXT, special=True)
    assert [each.token_id for each in scored(chunks)] == tokens
    assert [each.rank for each in scored(chunks)] == [0, *(token + 1 for token in tokens[1:])]
    assert [chunk.HasField("prompt") for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    assert [bool(chunk.deltas) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    if lost_after:
        assert scheduler.starts[1].scored_tokens == 1 + 3 * lost_after
        assert scheduler.starts[1].fingerprint == "worker"


async def test_taken_up_after_any_chunk_the_prompt_is_the_same(stub: Any, scheduler: Any) -> None:
    scheduler.scripts = [scripted()]
    whole = await collect(stub, ask())
    for after in range(len(whole)):
        before = scored(whole[:after])
        scheduler.scripts = [scripted()]
        rest = await collect(stub, ask(scored_tokens=len(before)))
        assert before + scored(rest) == scored(whole)


async def test_what_an_answer_shows_moves_nothing_in_a_prompt(stub: Any, scheduler: Any) -> None:
    scheduler.scripts = [scripted(), scripted()]
    asked = [ask(skip_special_tokens=skip) for skip in (False, True)]
    places = [[each.text_offset for each in scored(await collect(stub, one))] for one in asked]
    assert places[0] == places[1]
    assert places[0][:2] == [0, 0]  # the tokenizer has added the first token


async def test_a_prompt_of_one_token(stub: Any, scheduler: Any) -> None:
    scheduler.scripts = [scripted()]
    chunks = await collect(stub, TextRequest(**{**fields(), "tokens": TokenIds(ids=[9])}))
    assert [(each.token_id, each.rank) for each in scored(chunks)] == [(9, 0)]


def fields() -> dict[str, Any]:
    return {"request_id": "r", "n": 1, "sampling": SamplingParams(prompt_logprobs=0)}


@pytest.mark.parametrize("echo", [True, False])
async def test_the_text_of_tokens_is_given_back(
    stub: Any, scheduler: Any, byte_level: TextModel, echo: bool
) -> None:
    scheduler.scripts = [scripted()]
    tokens = byte_level.encode("one two", special=True)
    asked = TextRequest(request_id="r", n=1, tokens=TokenIds(ids=tokens), echo=echo, skip_special_tokens=True)
    cut = TextRequest(request_id="r", n=1, text="one two", echo=echo, truncate_prompt_tokens=1)
    scheduler.scripts.append(scripted())
    (short,) = [chunk.prompt for chunk in await collect(stub, cut) if chunk.HasField("prompt")]
    assert short.text == (byte_level.every_token[tokens[-1]].decode() if echo else "")
    (prompt,) = [chunk.prompt for chunk in await collect(stub, asked) if chunk.HasField("prompt")]
    assert prompt.text == ("one two" if echo else "")
