"""`use_beam_search`: what it is turned into, and with what it does not go."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proto.sampling_pb2 import FIRST, HEURISTIC, NEVER, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta, TextRequest
from tests.unit.gateway.conftest import FakeTokenizer, Gateway

BEAMS = {"model": "m", "prompt": "p", "use_beam_search": True}


async def answers(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
    """All at once, as a search gives them."""
    deltas = [
        TextDelta(index=index, text=f"answer {index}", token_ids=[1, 2, index], finish_reason=STOP)
        for index in range(request.n)
    ]
    yield TextChunk(prompt=PromptInfo(tokens=2), deltas=deltas)


async def asked(gateway: Gateway, tokenizer: FakeTokenizer, **body: Any) -> TextRequest:
    tokenizer.generate = answers
    response = await gateway.http.post("/v1/completions", json={**BEAMS, **body})
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["text"] for choice in choices] == [f"answer {n}" for n in range(body.get("n", 1))]
    request: TextRequest = tokenizer.requests[0]
    return request


@pytest.mark.parametrize(("given", "stopping"), [(False, HEURISTIC), (True, FIRST), ("never", NEVER)])
async def test_a_search_is_asked_for(
    gateway: Gateway, tokenizer: FakeTokenizer, given: object, stopping: int
) -> None:
    options = {"beam_width": 5, "n": 2, "length_penalty": 0.5, "early_stopping": given}
    request = await asked(gateway, tokenizer, **options)
    beams = request.beams
    assert (request.n, beams.beam_width, beams.length_penalty, beams.early_stopping) == (2, 5, 0.5, stopping)
    assert request.sampling.temperature == 0


async def test_it_is_as_wide_as_its_answers_are_many(gateway: Gateway, tokenizer: FakeTokenizer) -> None:
    assert (await asked(gateway, tokenizer, n=3)).beams.beam_width == 3


async def test_one_beam_is_greedy(gateway: Gateway, tokenizer: FakeTokenizer) -> None:
    request = await asked(gateway, tokenizer, beam_width=1)
    assert not request.HasField("beams")
    assert request.sampling.temperature == 0


async def test_a_stream_gets_its_answers_at_the_end(gateway: Gateway, tokenizer: FakeTokenizer) -> None:
    tokenizer.generate = answers
    events = await gateway.events("/v1/completions", prompt="p", use_beam_search=True, n=2)
    texts = [
        choice["text"]
        for event in map(json.loads, events[:-1])
        for choice in event["choices"]
        if choice["text"]
    ]
    assert texts == ["answer 0", "answer 1"]


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("beam_width", {"use_beam_search": False, "beam_width": 4}),
        ("length_penalty", {"use_beam_search": False, "length_penalty": 1.5}),
        ("early_stopping", {"use_beam_search": False, "early_stopping": True}),
        ("beam_width", {"beam_width": 2, "n": 3}),
        ("beam_width", {"beam_width": 0}),
        ("length_penalty", {"beam_width": 2, "length_penalty": 11}),
        ("early_stopping", {"beam_width": 2, "early_stopping": "sometimes"}),
        ("temperature", {"beam_width": 2, "temperature": 0.7}),
        ("top_p", {"beam_width": 2, "top_p": 0.9}),
        ("top_k", {"beam_width": 2, "top_k": 5}),
        ("frequency_penalty", {"beam_width": 2, "frequency_penalty": 0.5}),
        ("logprobs", {"beam_width": 2, "logprobs": 1}),
        ("best_of", {"beam_width": 2, "best_of": 2}),
    ],
)
async def test_what_does_not_go_with_it(gateway: Gateway, param: str, body: dict[str, Any]) -> None:
    response = await gateway.http.post("/v1/completions", json={**BEAMS, **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
