"""The service between a client and a scheduler that a test writes, over plain gRPC."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ops.runtime.trace_sampling import LONGEST_WAIT
from proto.arrays import pack, unpack
from proto.sampling_pb2 import (
    LENGTH,
    NOT_FINISHED,
    STOP,
    FinishReason,
    Grammar,
    PredictedTokens,
    SamplingParams,
    TokenRules,
)
from proto.scheduler_pb2 import GenerateResponse, SequenceDelta, TokenLogprobs
from proto.tokenizer_pb2 import (
    CallShape,
    ChatMessage,
    Conversation,
    Shape,
    TextChunk,
    TextRequest,
    TextSoFar,
    TokenIds,
)
from proto.tokenizer_pb2_grpc import TokenizerStub
from tests.support.spans import exported_to
from tests.unit.tokenizer_svc.conftest import service_of
from tokenizer_svc import service
from tokenizer_svc.answers import generation
from tokenizer_svc.answers.detokenizer import Detokenizer
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import Formats, ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.templates.template import ChatTemplate

HI = ChatMessage(role="user", content="hi")
ANSWER = "the lazy café 😀 over 東京, and one two three"


def delta(
    tokens: Sequence[int], reason: FinishReason = NOT_FINISHED, index: int = 0, **more: Any
) -> SequenceDelta:
    return SequenceDelta(index=index, tokens=pack(tokens), finish_reason=reason, **more)


def says(
    tokens: Sequence[int], reason: FinishReason = LENGTH, lost_after: int | None = None
) -> Callable[..., Any]:
    """A scheduler that goes on with `tokens` after what it is told was delivered, one a message."""

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        done = len(unpack(start.resumed[0].tokens)) if start.resumed else 0
        yield GenerateResponse(cached_tokens=16)
        for at in range(done, len(tokens)):
            if at == lost_after:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "it died")
            yield GenerateResponse(
                deltas=[delta(tokens[at : at + 1], reason if at + 1 == len(tokens) else NOT_FINISHED)]
            )

    return script


def ask(**more: Any) -> TextRequest:
    prompt = {} if {"text", "tokens", "chat"} & more.keys() else {"text": "Tell me"}
    return TextRequest(**{"request_id": "r", "n": 1, "skip_special_tokens": True, **prompt, **more})


def ruled(**rules: Any) -> SamplingParams:
    return SamplingParams(rules=TokenRules(**rules))


async def collect(stub: TokenizerStub, request: TextRequest) -> list[TextChunk]:
    return [chunk async for chunk in stub.Generate(request)]


def text_of(chunks: list[TextChunk], index: int = 0) -> str:
    return "".join(one.text for chunk in chunks for one in chunk.deltas if one.index == index)


def tokens_of(chunks: list[TextChunk], index: int = 0) -> list[int]:
    return [
        token for chunk in chunks for one in chunk.deltas if one.index == index for token in one.token_ids
    ]


def last_of(chunks: list[TextChunk], index: int = 0) -> Any:
    return [one for chunk in chunks for one in chunk.deltas if one.index == index][-1]


@pytest.fixture
def answer(byte_level: TextModel) -> list[int]:
    return byte_level.encode(ANSWER, special=False)


async def test_what_tokens_need_is_made_while_the_scheduler_computes(
    stub: Any, scheduler: Any, answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()

    class Noted(Detokenizer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.set()

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        async with asyncio.timeout(10):
            await made.wait()
        yield GenerateResponse(deltas=[delta(answer, LENGTH)])

    monkeypatch.setattr(generation, "Detokenizer", Noted)
    scheduler.scripts = [script]
    assert text_of(await collect(stub, ask())) == ANSWER


async def test_text_in_text_out(stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int]) -> None:
    scheduler.scripts = [says([*answer, 1], STOP)]
    sampling = SamplingParams(temperature=0.5, seed=7)
    fields = {"max_tokens": 50, "stop_token_ids": [9], "cache_salt": "mine", "return_prompt_tokens": True}
    chunks = await collect(stub, ask(sampling=sampling, **fields))
    assert text_of(chunks) == ANSWER
    assert tokens_of(chunks) == [*answer, 1]
    assert last_of(chunks).finish_reason == STOP
    assert not last_of(chunks).stop_string
    prompt = byte_level.encode("Tell me", special=True)
    assert list(chunks[0].prompt.token_ids) == prompt
    assert chunks[0].prompt.tokens == len(prompt)
    assert chunks[0].prompt.cached_tokens == 16
    assert not any(chunk.HasField("prompt") for chunk in chunks[1:])
    (start,) = scheduler.starts
    assert tuple(unpack(start.prompt_tokens)) == tuple(prompt)
    assert (start.request_id, start.n, start.cache_salt, start.sampling) == ("r", 1, "mine", sampling)
    assert start.stop.max_tokens == 50
    assert list(start.stop.stop_token_ids) == [1, 9]


@pytest.mark.parametrize("times", [1, 900])
async def test_a_prediction(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int], times: int
) -> None:
    """It goes to the scheduler as tokens, and what became of it comes back."""

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        told = PredictedTokens(accepted=3, rejected=1)
        yield GenerateResponse(deltas=[delta(answer, LENGTH)], predicted=told)

    scheduler.scripts = [script, says(answer)]
    chunks = await collect(stub, ask(prediction=ANSWER * times))
    assert scheduler.starts[0].predicted_tokens == pack(byte_level.encode(ANSWER * times, False))
    assert [(each.predicted.accepted, each.predicted.rejected) for each in chunks] == [(3, 1)]
    chunks = await collect(stub, ask())
    assert not scheduler.starts[1].predicted_tokens
    assert not any(each.HasField("predicted") for each in chunks)


async def test_the_prompts_tokens_are_delivered_if_they_are_wanted(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int]
) -> None:
    scheduler.scripts = [says(answer)]
    chunks = await collect(stub, ask())
    assert chunks[0].prompt.tokens == len(byte_level.encode("Tell me", special=True))
    assert not chunks[0].prompt.token_ids


async def test_prompts_of_all_kinds(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int]
) -> None:
    scheduler.scripts = [says(answer), says(answer), says(answer)]
    chat = Conversation(messages=[ChatMessage(role="user", content="hi")])
    long = "the lazy dog " * 2000
    for request in (ask(tokens=TokenIds(ids=[5, 6])), ask(chat=chat, ignore_eos=True), ask(text=long)):
        assert text_of(await collect(stub, request)) == ANSWER
    prompts = [tuple(unpack(start.prompt_tokens)) for start in scheduler.starts]
    assert prompts[0] == (5, 6)
    assert prompts[1] == tuple(byte_level.encode("<s>[user] hi\n[assistant]", special=False))
    assert prompts[2] == tuple(byte_level.encode(long, special=True))
    assert list(scheduler.starts[1].stop.stop_token_ids) == []
    assert scheduler.starts[0].stop.max_tokens == 0


async def test_a_template_is_told_who_speaks(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.scripts = [says(answer)]
    told: list[Any] = []
    monkeypatch.setattr(ChatTemplate, "render", lambda _, messages, *__: told.extend(messages) or "x")
    bob = ChatMessage(role="user", content="hi", name="Bob")
    await collect(stub, ask(chat=Conversation(messages=[bob, HI])))
    assert told == [{"role": "user", "content": "hi", "name": "Bob"}, {"role": "user", "content": "hi"}]


async def test_a_stop_string_ends_its_sequence_alone(stub: Any, scheduler: Any, answer: list[int]) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        for token in answer:
            yield GenerateResponse(deltas=[delta([token])])
            yield GenerateResponse(deltas=[delta([token], index=1)] if token != answer[-1] else [])
        assert await scheduler.ended.get() == 0
        # More of the ended sequence was under way; the other goes on.
        yield GenerateResponse(deltas=[delta([3, 4]), delta(answer[-1:], LENGTH, index=1)])

    scheduler.scripts = [script]
    chunks = await collect(stub, ask(n=2, stop=["absent", "ver 東", "and ONE"]))
    assert text_of(chunks) == "the lazy café 😀 o"
    assert (last_of(chunks).finish_reason, last_of(chunks).stop_string) == (STOP, "ver 東")
    used = tokens_of(chunks)
    assert used == answer[: len(used)]
    assert len(used) < len(answer)
    assert text_of(chunks, 1) == "the lazy café 😀 o"


async def test_min_tokens_hold_back_every_end(stub: Any, scheduler: Any, answer: list[int]) -> None:
    """Stop strings, too, which the worker does not know; and end tokens even where they end nothing."""
    stop = ANSWER[:3]
    for least in (len(answer) - 1, 0):
        scheduler.scripts = [says(answer, LENGTH)]
        request = ask(sampling=ruled(min_tokens=least), stop=[stop, ANSWER[-2:]], stop_token_ids=[9])
        chunks = await collect(stub, request)
        assert text_of(chunks) == (ANSWER[:-2] if least else "")
        assert last_of(chunks).stop_string == (ANSWER[-2:] if least else stop)
    request = ask(sampling=ruled(min_tokens=1), ignore_eos=True, stop_token_ids=[9])
    scheduler.scripts = [says(answer, LENGTH)]
    assert text_of(await collect(stub, request)) == ANSWER
    asked = [list(start.sampling.rules.end_tokens) for start in scheduler.starts]
    assert asked == [[1, 9], [], [1, 9]]
    assert list(scheduler.starts[-1].stop.stop_token_ids) == [9]


@pytest.mark.parametrize("skip", [True, False])
async def test_a_text_with_what_ends_it(stub: Any, scheduler: Any, answer: list[int], skip: bool) -> None:
    """A stop string, and a stop token, which is hidden if it is special."""
    scheduler.scripts = [says(answer), says([*answer, 1], STOP), says([*answer, *answer[:1]], STOP)]
    more = {"include_stop_text": True, "skip_special_tokens": skip}
    assert text_of(await collect(stub, ask(stop=["ver 東"], **more))) == "the lazy café 😀 over 東"
    assert text_of(await collect(stub, ask(**more))) == ANSWER + ("" if skip else "</s>")
    assert text_of(await collect(stub, ask(stop_token_ids=answer[:1], **more))) == ANSWER + ANSWER[:1]


async def test_an_answer_without_a_text(stub: Any, scheduler: Any, answer: list[int]) -> None:
    scheduler.scripts = [says([*answer, 1], STOP)]
    chunks = await collect(stub, ask(no_text=True))
    assert (text_of(chunks), tokens_of(chunks)) == ("", [*answer, 1])
    so_far = [TextSoFar(index=0, token_ids=answer[:2])]
    scheduler.scripts = [says([*answer, 1], STOP)]
    rest = await collect(stub, ask(no_text=True, resumed=so_far))
    assert (text_of(rest), tokens_of(rest)) == ("", [*answer[2:], 1])


async def test_bad_words_become_tokens(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int]
) -> None:
    """As at the beginning of a text, and as after a space, however many tokens that is."""
    scheduler.scripts = [says(answer) for _ in range(3)]
    for words in (["the", "naïve dog"], ["the " * 32] * 40, ["princess"]):
        await collect(stub, ask(bad_words=words))
    sent = [[list(word.tokens) for word in start.sampling.rules.bad_words] for start in scheduler.starts]
    the, within, naive = (byte_level.encode(text, special=False) for text in ("the", " the", "naïve dog"))
    assert sent[0][0] == the
    assert within in sent[0]
    assert naive in sent[0]
    assert sent[1][0] == byte_level.encode("the " * 32, special=False)
    spelled = [byte_level.encode(text, special=False) for text in ("princess", " princess")]
    assert len(spelled[0]) != len(spelled[1])
    assert sent[2] == spelled


async def test_breakers_become_tokens(
    stub: Any, scheduler: Any, byte_level: TextModel, answer: list[int]
) -> None:
    scheduler.scripts = [says(answer), says(answer)]
    asked = ask(dry_breakers=["th"])
    asked.sampling.rules.dry.dry_multiplier = 1
    for _ in range(2):
        await collect(stub, asked)
    for start in scheduler.starts:
        dry = start.sampling.rules.dry
        assert b"th" in byte_level.every_token[dry.breaker_tokens[0]]
        assert all(byte_level.every_token[each.tokens[0]].endswith(b"t") for each in dry.breakers)
    assert len(scheduler.starts) == 2


@pytest.mark.parametrize("skip", [True, False])
async def test_a_special_token_as_a_stop_string(
    stub: Any, scheduler: Any, answer: list[int], skip: bool
) -> None:
    """The text does not show it, and it ends the answer all the same."""
    scheduler.scripts = [says([*answer, 1], STOP)]
    request = ask(stop=["</s>", "<think>"], ignore_eos=True, skip_special_tokens=skip)
    assert text_of(await collect(stub, request)) == ANSWER
    (start,) = scheduler.starts
    assert list(start.stop.stop_token_ids) == [1]  # <think> is a word like others


async def test_sequences_end_independently(stub: Any, scheduler: Any, byte_level: TextModel) -> None:
    one, two = byte_level.encode("one STOP more", special=False), byte_level.encode("one ST", special=False)

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        yield GenerateResponse(deltas=[delta(one), delta(two, index=1)])
        assert await scheduler.ended.get() == 0
        yield GenerateResponse(deltas=[delta([], LENGTH, index=1)])

    scheduler.scripts = [script]
    chunks = await collect(stub, ask(n=2, stop=["STOP"]))
    assert (text_of(chunks), last_of(chunks).finish_reason, last_of(chunks).stop_string) == (
        "one ",
        STOP,
        "STOP",
    )
    # Of tokens that came together, those after the stop string do not count.
    assert byte_level.tokenizer.decode(tokens_of(chunks)) == "one STOP"
    # What was held back comes when nothing follows any more.
    assert (text_of(chunks, 1), last_of(chunks, 1).finish_reason) == ("one ST", LENGTH)


@pytest.mark.parametrize("stop", [[], [", and o"]])
async def test_taken_up_after_any_chunk_the_text_is_the_same(
    stub: Any, scheduler: Any, answer: list[int], stop: list[str]
) -> None:
    scheduler.scripts = [says(answer)]
    whole = await collect(stub, ask(stop=stop))
    for after in range(len(whole)):
        before = whole[:after]
        so_far = TextSoFar(token_ids=tokens_of(before), text_length=len(text_of(before)))
        scheduler.scripts = [says(answer)]
        rest = await collect(stub, ask(stop=stop, resumed=[so_far]))
        assert text_of(before) + text_of(rest) == text_of(whole)
        assert tokens_of(before) + tokens_of(rest) == tokens_of(whole)
        assert last_of(rest).finish_reason == last_of(whole).finish_reason
        assert last_of(rest).stop_string == last_of(whole).stop_string


@pytest.mark.parametrize(
    ("text", "length", "delivered", "rest", "stop_string"),
    [
        ("one STOP", 4, False, "", "STOP"),
        ("one STOP", 1, False, "ne ", "STOP"),
        ("all of it", 9, True, "", ""),
    ],
)
async def test_what_has_ended_needs_no_scheduler(
    stub: Any,
    scheduler: Any,
    byte_level: TextModel,
    text: str,
    length: int,
    delivered: bool,
    rest: str,
    stop_string: str,
) -> None:
    tokens = byte_level.encode(text, special=False)
    so_far = TextSoFar(token_ids=tokens, text_length=length, finished=delivered)
    chunks = await collect(stub, ask(stop=["STOP"], resumed=[so_far]))
    assert scheduler.starts == []
    assert text_of(chunks) == rest
    assert tokens_of(chunks) == []
    assert [one.stop_string for chunk in chunks for one in chunk.deltas] == (
        [stop_string] if stop_string else []
    )


async def test_only_unfinished_sequences_go_on(stub: Any, scheduler: Any, answer: list[int]) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        yield GenerateResponse(deltas=[delta(answer[4:], LENGTH, index=1)])

    scheduler.scripts = [script]
    done = TextSoFar(index=0, token_ids=answer, text_length=len(ANSWER), finished=True)
    half = TextSoFar(index=1, token_ids=answer[:4], text_length=0)
    chunks = await collect(stub, ask(n=2, resumed=[done, half]))
    assert text_of(chunks) == ""
    assert text_of(chunks, 1) == ANSWER
    first, second = scheduler.starts[0].resumed
    assert (first.finished, first.tokens) == (True, b"")
    assert (second.finished, second.index, tuple(unpack(second.tokens))) == (False, 1, tuple(answer[:4]))


async def test_a_wide_answer_that_has_got_far_goes_on(stub: Any, scheduler: Any) -> None:
    """What it has is larger than a message may be."""

    async def begins(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        for index in range(5):
            yield GenerateResponse(deltas=[delta([5] * 220_000, index=index)])
        await context.abort(grpc.StatusCode.UNAVAILABLE, "it died")

    async def ends(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        for so_far in start.resumed:
            yield GenerateResponse(deltas=[delta([6], LENGTH, index=so_far.index)])

    scheduler.scripts = [begins, ends]
    chunks = await collect(stub, ask(n=5, no_text=True))
    assert [len(unpack(each.tokens)) for each in scheduler.starts[1].resumed] == [220_000] * 5
    assert all(last_of(chunks, index).finish_reason == LENGTH for index in range(5))


@pytest.mark.parametrize("lost_after", [0, 1, 7, 12])
async def test_another_scheduler_takes_over(
    stub: Any, scheduler: Any, answer: list[int], lost_after: int
) -> None:
    scheduler.scripts = [
        says(answer, lost_after=lost_after),
        says(answer, lost_after=lost_after),
        says(answer),
    ]
    if lost_after:
        scheduler.scripts.pop(1)
    chunks = await collect(stub, ask(stop=["nowhere"]))
    assert text_of(chunks) == ANSWER
    assert tokens_of(chunks) == answer
    assert [chunk.HasField("prompt") for chunk in chunks].count(True) == 1
    resumed = [tuple(unpack(so_far.tokens)) for so_far in scheduler.starts[-1].resumed]
    assert resumed == ([tuple(answer[:lost_after])] if lost_after else [])


async def test_logprobs(stub: Any, scheduler: Any, byte_level: TextModel) -> None:
    tokens = byte_level.encode("é", special=False)
    split = [
        next(t for t in range(420) if byte_level.every_token[t] == bytes([byte])) for byte in "é".encode()
    ]
    entry = TokenLogprobs(
        logprob=-0.5, top_tokens=pack([1, tokens[0]]), top_logprobs=struct.pack("<2f", -0.5, -2.0)
    )

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        yield GenerateResponse(deltas=[delta([*split, 1], STOP, logprobs=[entry] * 3)])

    scheduler.scripts = [script]
    (first, second, end) = last_of(await collect(stub, ask(sampling=SamplingParams(logprobs=2)))).logprobs
    assert (first.token_id, first.text, first.utf8, first.logprob) == (split[0], "�", b"\xc3", -0.5)
    assert second.utf8 == b"\xa9"
    assert (end.text, end.utf8) == ("</s>", b"</s>")
    assert [one.unseen for one in (first, second, end)] == [False, False, True]
    assert [(top.text, top.utf8, top.logprob) for top in first.top] == [
        ("</s>", b"</s>", -0.5),
        (byte_level.every_token[tokens[0]].decode(errors="replace"), byte_level.every_token[tokens[0]], -2.0),
    ]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (TextRequest(n=1), "prompt"),
        (ask(tokens=TokenIds()), "prompt"),
        (ask(tokens=TokenIds(ids=[1, 422])), "prompt"),
        (ask(tokens=TokenIds(ids=[2**32 - 1])), "prompt"),
        (ask(chat=Conversation()), "messages"),
        (ask(chat=Conversation(messages=[HI], template_arguments="[]")), "chat_template_kwargs"),
        (ask(chat=Conversation(messages=[HI], template_arguments="{")), "chat_template_kwargs"),
        (ask(chat=Conversation(messages=[HI], template_arguments='{"tools": []}')), "chat_template_kwargs"),
        (ask(chat=Conversation(messages=[ChatMessage(role="user", content="")] * 4097)), "messages"),
        (ask(n=0), "n"),
        (ask(max_tokens=0), "max_tokens"),
        (ask(stop=[""]), "stop"),
        (ask(stop=["x"], no_text=True), "stop"),
        (ask(chat=Conversation(messages=[HI], documents="{}")), "documents"),
        (ask(stop=["x" * 257]), "stop"),
        (ask(stop=["x"] * 65), "stop"),
        (ask(stop=["x" * 256] * 17), "stop"),
        (ask(stop_token_ids=[422]), "stop_token_ids"),
        (ask(sampling=ruled(biased_tokens=[422], biases=[1])), "logit_bias"),
        (ask(sampling=ruled(allowed_tokens=[422])), "allowed_token_ids"),
        (ask(sampling=ruled(allowed_tokens=[5] * 4097)), "allowed_token_ids"),
        (ask(bad_words=["x"] * 129), "bad_words"),
        (ask(bad_words=[" "]), "bad_words"),
        (ask(bad_words=["x" * 257]), "bad_words"),
        (ask(stop_token_ids=[1] * 257), "stop_token_ids"),
        (ask(resumed=[TextSoFar(index=1)]), "resumed"),
        (ask(resumed=[TextSoFar(), TextSoFar()]), "resumed"),
        (ask(resumed=[TextSoFar(token_ids=[5000])]), "resumed"),
    ],
)
async def test_what_can_never_be_served(stub: Any, scheduler: Any, request_: TextRequest, param: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub, request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ("quire-param", param) in tuple(caught.value.trailing_metadata())
    assert scheduler.starts == []


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask(text="x" * 2_000_001), "prompt"),
        (ask(tokens=TokenIds(ids=[5] * 500_001)), "prompt"),
        (ask(chat=Conversation(messages=[ChatMessage(role="user", content="x" * 2_000_001)])), "messages"),
    ],
)
async def test_what_no_context_has_room_for(
    stub: Any, scheduler: Any, request_: TextRequest, param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub, request_)
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert ("quire-param", param) in tuple(caught.value.trailing_metadata())
    assert scheduler.starts == []


async def test_the_scheduler_s_refusal_is_passed_on(stub: Any, scheduler: Any) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "too long", (("quire-param", "prompt"), ("other", "x"))
        )
        yield GenerateResponse()

    scheduler.scripts = [script]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub, ask())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "too long")
    assert [key for key, _ in caught.value.trailing_metadata()] == ["quire-param"]


async def test_a_grammar_that_goes_no_further_is_the_client_s_field(stub: Any, scheduler: Any) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too many", (("quire-param", "grammar"),))
        yield GenerateResponse()

    scheduler.scripts = [script]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub, ask())
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "too many")
    assert tuple(caught.value.trailing_metadata()) == (("quire-param", "structured_outputs"),)


async def test_a_scheduler_that_ends_too_early_has_failed(
    stub: Any, scheduler: Any, answer: list[int]
) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        yield GenerateResponse(deltas=[delta(answer[:3])])

    scheduler.scripts = [script]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(stub, ask())
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_cancelling_reaches_the_scheduler(stub: Any, scheduler: Any, answer: list[int]) -> None:
    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        yield GenerateResponse(deltas=[delta(answer[:1])])
        await asyncio.Event().wait()

    scheduler.scripts = [script]
    call = stub.Generate(ask())
    await call.read()
    call.cancel()
    async with asyncio.timeout(60):
        await scheduler.cancelled.wait()
    assert len(scheduler.starts) == 1


async def test_the_deadline_and_the_trace_go_along(stub: Any, scheduler: Any, answer: list[int]) -> None:
    remaining = []

    async def script(start: Any, context: Any) -> AsyncIterator[GenerateResponse]:
        remaining.append(context.time_remaining())
        yield GenerateResponse(deltas=[delta(answer, LENGTH)])

    scheduler.scripts = [script]
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async for _ in stub.Generate(ask(), timeout=30, metadata=(("traceparent", parent),)):
        pass
    assert 0 < remaining[0] < 40
    assert scheduler.metadata[0]["traceparent"].split("-")[1] == parent.split("-")[1]


async def test_a_thought_is_free_before_a_shape_and_before_calls(byte_level: TextModel) -> None:
    """In a conversation with a model that thinks; its plain completions follow their shape at once."""
    asked: list[tuple[CallRules | None, ThoughtRules | None]] = []

    class Compiling:
        async def grammar_of(self, request: TextRequest, calls: Any, before: Any) -> Grammar:
            asked.append((calls, before))
            return Grammar(text="g")

    formats = Formats(replace(byte_level, template="<tool_call></think>"))
    grammars: Any = Compiling()
    service = service_of(byte_level, None, grammars=grammars, formats=formats)
    chat = Conversation(messages=[HI], tools='[{"type": "function", "function": {"name": "f"}}]')
    prompt = byte_level.encode("hi<think>", special=False)
    for request in (
        ask(chat=chat, shape=Shape(regex="a")),
        ask(chat=chat, shape=Shape(calls=CallShape(required=True))),
        ask(shape=Shape(regex="a")),
    ):
        await service._constrain(request, prompt)
        assert request.sampling.grammar.text == "g"
    thinks = ThoughtRules("think", formats.marks, True)
    calls = CallRules([Function("f", None)], "hermes", thinks, required=True)
    assert asked == [(None, thinks), (calls, None), (None, None)]
    free = ask(chat=Conversation(messages=[HI]), shape=Shape(calls=CallShape()))
    silent = service_of(byte_level, None, grammars=grammars, formats=Formats(byte_level, calls="none"))
    await silent._constrain(free, prompt)
    assert not free.sampling.HasField("grammar")
    assert len(asked) == 3
    # What the model cannot call leaves the shape of the text.
    text = Shape(json_schema="{}", lenient=True, param="response_format", or_calls=CallShape())
    shaped = ask(chat=Conversation(messages=[HI]), shape=text)
    await silent._constrain(shaped, prompt)
    assert shaped.shape == text
    assert (shaped.sampling.grammar.text, asked.pop()) == ("g", (None, ThoughtRules("", {})))
    # Nothing is to be counted in an answer without a thought.
    budget = ask(chat=Conversation(messages=[HI]), thinking_budget=5)
    await service._constrain(budget, byte_level.encode("<think></think>", special=False))
    assert not budget.sampling.HasField("grammar")
    with pytest.raises(InvalidRequestError, match="cannot be counted"):
        await service._constrain(budget, prompt)
    # A wish is passed over where it cannot be met.
    wish = ask(chat=Conversation(messages=[HI]), thinking_budget=5, lenient_budget=True)
    await service._constrain(wish, prompt)
    assert not wish.sampling.HasField("grammar")
    demanded = ask(
        chat=chat, shape=Shape(calls=CallShape(required=True)), thinking_budget=5, lenient_budget=True
    )
    await service._constrain(demanded, prompt)
    assert asked.pop() == (calls, None)


async def test_a_wish_that_no_grammar_can_meet_is_passed_over(
    byte_level: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unable:
        async def grammar_of(self, *_: Any) -> None:
            raise InvalidRequestError("thinking_token_budget", "the model has no end token")

    monkeypatch.setattr(Formats, "before", lambda *_: ThoughtRules("think", {}, budget=5))
    formats = Formats(replace(byte_level, template="</think>"))
    unable = service_of(byte_level, None, grammars=Unable(), formats=formats)
    asked = ask(chat=Conversation(messages=[HI]), thinking_budget=5, lenient_budget=True)
    await unable._constrain(asked, [])
    assert not asked.sampling.HasField("grammar")
    asked.lenient_budget = False
    with pytest.raises(InvalidRequestError, match="no end token"):
        await unable._constrain(asked, [])


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return exported_to(InMemorySpanExporter(), monkeypatch, service)


async def spans_of(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    """All spans of one request: its own is the last one to end."""
    while not any(span.name == "tokenizer.generate" for span in spans.get_finished_spans()):
        await asyncio.sleep(0.001)
    return list(spans.get_finished_spans())


async def test_the_parts_of_a_request_are_spans(
    stub: Any, scheduler: Any, answer: list[int], spans: InMemorySpanExporter
) -> None:
    scheduler.scripts = [says(answer, lost_after=3), says(answer)]
    await collect(stub, ask(max_tokens=len(answer)))
    encode, first, second, request = await spans_of(spans)
    assert [span.name for span in (encode, first, second)] == [
        "tokenizer.encode",
        *["quire.Scheduler/Generate"] * 2,
    ]
    assert all(span.parent == request.context for span in (encode, first, second))
    assert encode.attributes["quire.prompt_tokens"] == request.attributes["quire.prompt_tokens"] > 0
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "it died")
    assert second.status.status_code is StatusCode.UNSET
    told = [
        (span.attributes["quire.attempt"], span.attributes["quire.resumed_tokens"])
        for span in (first, second)
    ]
    assert told == [(1, 0), (2, 3)]
    assert request.attributes[LONGEST_WAIT] > 0
    assert request.status.status_code is StatusCode.UNSET


async def test_a_mistake_of_the_caller_s_is_no_error_of_the_span(
    stub: Any, scheduler: Any, spans: InMemorySpanExporter
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(stub, ask(tokens=TokenIds(ids=[10**6])))
    *_, request = await spans_of(spans)
    assert request.status.status_code is StatusCode.UNSET
    assert (request.attributes["error.type"], request.events[-1].name) == ("INVALID_ARGUMENT", "exception")


@pytest.mark.parametrize(
    ("template", "names", "told"),
    [
        ("<think>", {}, {"calls", "thoughts"}),
        ("plain", {}, {"calls"}),
        ("<think>", {"calls": "none"}, {"thoughts"}),
        ("<think>", {"calls": "none", "thoughts": "none"}, set()),
        (None, {}, set()),
    ],
)
def test_the_lease_tells_what_can_be_told_from_the_text(
    byte_level: TextModel, template: str | None, names: dict[str, str], told: set[str]
) -> None:
    model = replace(byte_level, template=template)
    found = service.told_of(model, Formats(model, **names))
    assert found == {"num_labels": 0, "bidirectional": False} | dict.fromkeys(told, True)
