"""Log probabilities of tokens that are not whole characters, and of impossible ones."""

import json
import math

from gateway.api.generation.logprobs import (
    LOWEST_LOGPROB,
    CompletionLogprobs,
    chat_logprobs,
    echoed,
    joined,
)
from proto.tokenizer_pb2 import TokenText


def token(raw: bytes, logprob: float = -1.0, *top: TokenText) -> TokenText:
    return TokenText(text=raw.decode(errors="replace"), utf8=raw, logprob=logprob, top=top)


def test_parts_of_a_character_stay_distinct_and_offsets_count_characters():
    fox = "🦊".encode()
    tops = [token(fox[:2], -0.5), token(fox[:3], -2.0)]
    parts = CompletionLogprobs()
    first = parts.of([token(b"a"), token(fox[:2], -0.5, *tops)])
    second = parts.of([token(fox[2:]), token("é b".encode()), token(b"!")])
    whole = joined([first, second])
    assert whole["tokens"] == ["a", "bytes:\\xf0\\x9f", "bytes:\\xa6\\x8a", "é b", "!"]
    assert whole["top_logprobs"][1] == {"bytes:\\xf0\\x9f": -0.5, "bytes:\\xf0\\x9f\\xa6": -2.0}
    assert whole["text_offset"] == [0, 1, 1, 2, 5]


def test_offsets_are_places_in_the_text():
    end = token(b"<|end|>")
    end.unseen = True
    tokens = [token(b"a"), end, token(b"\x80"), token(b"\xf0\x9f"), token(b"b"), token(b"c")]
    text = b"".join(one.utf8 for one in tokens if not one.unseen).decode(errors="replace")
    offsets = CompletionLogprobs().of(tokens)["text_offset"]
    assert offsets == [0, 1, 1, 2, 2, text.index("c")]


def test_the_chosen_token_is_among_the_top_even_if_unlikely():
    (top,) = CompletionLogprobs().of([token(b"x", -9.0, token(b"y"), token(b"z"))])["top_logprobs"]
    assert top == {"x": -9.0, "y": -1.0, "z": -1.0}


def test_tokens_are_spelled_by_their_ids():
    tokens = [TokenText(token_id=7, text="a", utf8=b"a", logprob=-1, rank=1)]
    tokens[0].top.add(token_id=8, text="a", utf8=b"a", logprob=-2)
    for part in (CompletionLogprobs(as_ids=True).of(tokens), echoed(tokens, 1, as_ids=True)):
        assert part["tokens"] == ["token_id:7"]
        assert part["top_logprobs"] == [{"token_id:7": -1.0, "token_id:8": -2.0}]
    (entry,) = chat_logprobs(tokens, as_ids=True)["content"]
    (other,) = entry["top_logprobs"]
    assert (entry["token"], entry["bytes"], other["token"]) == ("token_id:7", [97], "token_id:8")


async def test_tokens_are_spelled_by_their_ids_where_that_is_asked(gateway):
    ask = {"model": "m", "max_tokens": 1, "return_tokens_as_token_ids": True}
    chat = ask | {"messages": [{"role": "user", "content": "A"}], "logprobs": True, "top_logprobs": 1}
    completion = ask | {"prompt": "A", "logprobs": 1}
    answer = await gateway.http.post("/v1/chat/completions", json=chat)
    (entry,) = answer.json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == ("token_id:100", "token_id:100")
    for fields in ({}, {"echo": True}):
        answer = await gateway.http.post("/v1/completions", json=completion | fields)
        assert answer.json()["choices"][0]["logprobs"]["tokens"] == ["token_id:100"]
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", completion)):
        assert '"token_id:100"' in "".join(await gateway.events(path, **body))


def test_what_json_cannot_say():
    tokens = [token(b"a", -math.inf, token(b"b", math.nan))]
    entry = chat_logprobs(tokens)["content"][0]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (LOWEST_LOGPROB, LOWEST_LOGPROB)
    assert "Infinity" not in json.dumps(CompletionLogprobs().of(tokens))
