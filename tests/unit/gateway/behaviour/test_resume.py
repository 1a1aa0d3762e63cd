"""A stream goes on after its server's death with the text it would have had."""

import asyncio
import json

import grpc
import pytest

from gateway.errors import Unavailable
from gateway.upstream.generation import Generation
from gateway.upstream.measures import Measures
from ops.runtime.metrics import Metrics
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import TextChunk, TextDelta, TextRequest

COMPLETIONS = "/v1/completions"


def dying(generate, *places: int):
    """`generate`, but the first calls die: call k after places[k] chunks."""
    deaths = list(places)

    async def mortal(request, context):
        left = deaths.pop(0) if deaths else None
        async for chunk in generate(request, context):
            if left == 0:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))
            left = None if left is None else left - 1
            yield chunk
        if left is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))

    return mortal


def scrubbed(events: list[str]) -> list[dict]:
    found = [json.loads(event) for event in events[:-1]]
    return [{key: value for key, value in event.items() if key not in ("id", "created")} for event in found]


@pytest.mark.parametrize("n", [1, 3])
async def test_death_after_any_chunk_changes_nothing(gateway, n):
    tell = gateway.tokenizer.generate
    ask = {"n": n, "prompt": "A", "max_tokens": 12, "logprobs": 1, "return_token_ids": True, "seed": 5}
    ask["stream_options"] = {"include_usage": True}
    undisturbed = scrubbed(await gateway.events(COMPLETIONS, **ask))
    for place in range(14):
        gateway.tokenizer.requests.clear()
        gateway.tokenizer.generate = dying(tell, place)
        assert scrubbed(await gateway.events(COMPLETIONS, **ask)) == undisturbed
        # A server that dies after the last chunk owes nothing more.
        assert len(gateway.tokenizer.requests) == (1 if place == 13 else 2)


async def test_what_was_delivered_goes_with_the_next_call(gateway):
    gateway.tokenizer.generate = dying(gateway.tokenizer.generate, 4)
    await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", "n": 2, "seed": 5})
    first, second = gateway.tokenizer.requests
    assert list(first.resumed) == []
    texts = ["Once upon a", " upon a time"]
    for index, so_far in enumerate(second.resumed):
        assert (so_far.index, list(so_far.token_ids), so_far.finished) == (index, [100, 101, 102], False)
        assert so_far.text_length == len(texts[index])
    del second.resumed[:]
    assert first == second


async def test_the_next_call_names_who_began_the_answer(gateway):
    tell = gateway.tokenizer.generate

    async def named(request, context):
        async for chunk in tell(request, context):
            if chunk.HasField("prompt"):
                chunk.prompt.fingerprint = "tokenizer worker"
            yield chunk

    gateway.tokenizer.generate = dying(named, 4)
    await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", "seed": 5})
    first, second = gateway.tokenizer.requests
    assert (first.fingerprint, second.fingerprint) == ("", "tokenizer worker")


async def test_an_answer_that_nobody_goes_on_with_is_not_changed(gateway):
    async def upgraded(request, context):
        if request.resumed:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "no worker here goes on with this answer"
            )
        yield TextChunk(deltas=[TextDelta(index=0, text="a", token_ids=[1])])
        await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))

    gateway.tokenizer.generate = upgraded
    answer = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert answer.status_code == 503
    assert len(gateway.tokenizer.requests) == 2


async def test_a_finished_sequence_is_told_to_be_finished(gateway):
    async def uneven(request, context):
        if not request.resumed:
            yield TextChunk(deltas=[TextDelta(index=0, text="é", token_ids=[1, 2], finish_reason=STOP)])
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))
        yield TextChunk(deltas=[TextDelta(index=1, text="b", token_ids=[3], finish_reason=STOP)])

    gateway.tokenizer.generate = uneven
    answer = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", "n": 2})
    assert [choice["text"] for choice in answer.json()["choices"]] == ["é", "b"]
    so_far = gateway.tokenizer.requests[1].resumed
    assert [(one.index, one.text_length, one.finished) for one in so_far] == [(0, 1, True), (1, 0, False)]


async def test_only_the_prompt_whose_server_died_is_asked_again(gateway):
    tell = gateway.tokenizer.generate
    mortal = dying(tell, 3)

    def choose(request, context):
        return (mortal if request.text == "B" else tell)(request, context)

    gateway.tokenizer.generate = choose
    answer = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": ["A", "B"], "max_tokens": 9})
    assert {choice["text"] for choice in answer.json()["choices"]} == {"Once upon a time, a fox saw snow"}
    assert sorted(request.text for request in gateway.tokenizer.requests) == ["A", "B", "B"]


async def test_a_request_that_kills_its_servers_is_given_up(gateway):
    gateway.tokenizer.generate = dying(gateway.tokenizer.generate, *[0] * 20)
    async with asyncio.timeout(60):
        response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert len(gateway.tokenizer.requests) <= 10


async def test_the_attempt_is_told(gateway):
    gateway.tokenizer.generate = dying(gateway.tokenizer.generate, 0)
    await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    first, second = gateway.tokenizer.metadata
    ours = {key for key in second if second[key] != first.get(key)}
    assert ours, "the second call must say that it is one"


async def test_an_answer_to_a_shorter_prompt_is_not_resumed(backend, tokenizer):
    tell = tokenizer.generate

    async def generate(request, context):
        if len(request.text) > 1:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too long")
        async for chunk in tell(request, context):
            yield chunk

    def shorten(request):
        request.text = request.text[1:]
        return True

    tokenizer.generate = generate
    measures, request = Measures("m", Metrics()), TextRequest(text="ABC", n=1)
    generation = Generation(backend.tokenizer("m"), request, measures, shorten=shorten)
    assert [chunk async for _, chunk in generation.chunks()]
    assert [one.text for one in tokenizer.requests] == ["ABC", "BC", "C"]
    assert measures.resumed.value == 0


async def test_a_generation_can_be_ended_from_outside(backend, tokenizer):
    async def generate(request, context):
        yield TextChunk(deltas=[TextDelta(text="a", token_ids=[1])])
        await asyncio.Event().wait()

    tokenizer.generate = generate
    generation = Generation(backend.tokenizer("m"), TextRequest(text="A", n=1), Measures("m", Metrics()))
    chunks = generation.chunks()
    _, chunk = await anext(chunks)
    assert chunk.deltas[0].text == "a"
    generation.end(Unavailable("enough"))
    with pytest.raises(Unavailable, match="enough"):
        await anext(chunks)
    await asyncio.wait_for(tokenizer.cancelled.wait(), 60)
