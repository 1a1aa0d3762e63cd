"""Alternatives to each token: as many as a deployment allows, up to the whole vocabulary."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ops.runtime.limits import Limits
from proto.parts import parts_of
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextRequest, TokenText
from tests.unit.gateway.conftest import app_of

VOCABULARY = 70_000
EVERY = 2**31 - 1
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "A"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "A"}]}


def token(asked: int, rank: int = 0) -> TokenText:
    top = [
        TokenText(token_id=each, text=f"<{each}>", utf8=f"<{each}>".encode(), logprob=-each)
        for each in range(min(asked, VOCABULARY))
    ]
    return TokenText(token_id=1, text="<1>", utf8=b"<1>", logprob=-1, top=top, rank=rank)


async def lists(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
    """One token, and two of the prompt, with all the alternatives that are asked for."""
    sampling = request.sampling
    chunk = TextChunk(prompt=PromptInfo(tokens=2))
    if sampling.HasField("prompt_logprobs"):
        chunk.prompt_logprobs.extend((TokenText(token_id=7), token(sampling.prompt_logprobs, 2)))
    chunk.deltas.add(text="<1>", token_ids=[1], finish_reason=STOP)
    if sampling.HasField("logprobs"):
        chunk.deltas[0].logprobs.append(token(sampling.logprobs))
    for part in parts_of(chunk):
        yield part


async def ask(backend: Any, body: dict[str, Any], limits: str) -> httpx.Response:
    transport = httpx.ASGITransport(app_of(backend, limits=Limits.parse(limits)))
    path = "chat/completions" if "messages" in body else "completions"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
        return await http.post(f"/v1/{path}", json=body)


ASKED = [
    (COMPLETION, "logprobs"),
    (COMPLETION, "prompt_logprobs"),
    (CHAT, "prompt_logprobs"),
    (CHAT | {"logprobs": True}, "top_logprobs"),
]


@pytest.mark.parametrize(("limits", "most"), [("", 20), ("logprobs=30", 30), ("logprobs=0", 0)])
@pytest.mark.parametrize(("body", "name"), ASKED)
async def test_more_than_the_deployment_allows_are_refused(
    backend: Any, tokenizer: Any, limits: str, most: int, body: dict[str, Any], name: str
) -> None:
    tokenizer.generate = lists
    for wanted in (-1, most + 1):
        answer = await ask(backend, body | {name: wanted}, limits)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, name)
        assert f"in [0, {most}]" in error["message"]
    assert not tokenizer.requests
    assert (await ask(backend, body | {name: most}, limits)).status_code == 200


async def test_the_whole_vocabulary(backend: Any, tokenizer: Any) -> None:
    tokenizer.generate = lists
    answer = await ask(backend, COMPLETION | {"logprobs": -1, "prompt_logprobs": -1}, "logprobs=-1")
    (choice,) = answer.json()["choices"]
    (top,) = choice["logprobs"]["top_logprobs"]
    assert [*top.values()] == [-1, 0, *(max(-9999, -each) for each in range(2, VOCABULARY))]
    nothing, second = choice["prompt_logprobs"]
    assert nothing is None
    assert second["69999"] == {"logprob": -9999, "rank": VOCABULARY, "decoded_token": "<69999>"}
    assert len(second) == VOCABULARY
    assert tokenizer.requests[0].sampling.logprobs == tokenizer.requests[0].sampling.prompt_logprobs == EVERY


async def test_a_stream_of_chunks_in_parts(backend: Any, tokenizer: Any) -> None:
    tokenizer.generate = lists
    body = CHAT | {"logprobs": True, "top_logprobs": -1, "stream": True}
    answer = await ask(backend, body, "logprobs=-1")
    found = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    entries = [entry for each in found for entry in (each["choices"][0]["logprobs"] or {}).get("content", ())]
    (entry,) = entries
    assert [top["logprob"] for top in entry["top_logprobs"][:3]] == [0, -1, -2]
    assert len(entry["top_logprobs"]) == VOCABULARY


async def test_an_echoed_prompt(backend: Any, tokenizer: Any) -> None:
    tokenizer.generate = lists
    body = COMPLETION | {"prompt": [[7, 1]], "echo": True, "logprobs": 25, "max_tokens": 1}
    answer = await ask(backend, body, "logprobs=-1")
    nothing, second, answered = answer.json()["choices"][0]["logprobs"]["top_logprobs"]
    assert (nothing, len(second), len(answered)) == (None, 25, 25)
