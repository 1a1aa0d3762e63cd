"""Requests that the gateway makes of itself: on whose behalf, in pieces, and again if it is worth it."""

import asyncio
import json

import pytest

from gateway.behalf import Behalf
from gateway.http.own_requests import OwnRequests
from ops.runtime.api_keys import Key, digest_of
from ops.runtime.limits import Limits
from tests.unit.gateway.conftest import app_of

ASK = {"model": "m", "prompt": "A fox", "max_tokens": 3}
LIMITS = Limits(sequences=2)
NORTH = Behalf("north", digest_of("sk-north"), True)


def body(**fields):
    return json.dumps(ASK | fields).encode()


@pytest.fixture
def own(backend, keys_of):
    return OwnRequests(app_of(backend, keys_of({"sk-north": "north"})))


async def asked(own, data, behalf=NORTH, state=None, path="/v1/completions"):
    async with own.ask(path, data, behalf, state or {}) as reply:
        return reply, await reply.read()


async def test_a_request_is_its_tenant_s(own, tokenizer):
    state = {"request_id": "0" * 32, "late": True}
    reply, text = await asked(own, body(), state=state)
    assert (reply.status, reply.again_in) == (200, None)
    answer = json.loads(text)
    assert (answer["id"], answer["choices"][0]["text"]) == ("cmpl-" + "0" * 32, "Once upon a")
    (request,) = tokenizer.requests
    assert (request.tenant, request.cache_salt, request.priority) == ("north", "north:", 2**31 - 1)
    await asked(own, body(priority=7), state=state)
    assert tokenizer.requests[-1].priority == 7


async def test_a_stream_comes_in_pieces_and_ends_with_its_reader(own, tokenizer):
    async def slow(request, context):
        async for chunk in generate(request, context):
            yield chunk
            if chunk.deltas:
                await asyncio.Event().wait()

    generate, tokenizer.generate = tokenizer.generate, slow
    async with own.ask("/v1/completions", body(stream=True), NORTH) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert b"Once" in await anext(reply.pieces)
    async with asyncio.timeout(60):
        await tokenizer.cancelled.wait()


async def test_a_key_that_is_gone_asks_nothing(own, tokenizer):
    for behalf in (Behalf("north", "other", True), Behalf("192.0.2.7", "192.0.2.7", False)):
        reply, _ = await asked(own, body(), behalf)
        assert reply.status == 401
    assert tokenizer.requests == []


async def test_the_limits_are_those_of_the_key_now(backend, keys_of, tokenizer):
    keys = keys_of({})
    keys._given, keys._needed = {NORTH.account: Key(name="n", tenant="north", limits=LIMITS)}, True
    reply, text = await asked(OwnRequests(app_of(backend, keys)), body(n=3))
    assert reply.status == 400
    assert "at most 2" in json.loads(text)["error"]["message"]
    assert tokenizer.requests == []


async def test_when_to_ask_again(own, backend, tokenizer, keys_of):
    bad, _ = await asked(own, body(temperature=-1))
    assert (bad.status, bad.again_in) == (400, None)
    stopping = app_of(backend, keys_of({"sk-north": "north"}))
    stopping.state.drain.begun = True
    later, _ = await asked(OwnRequests(stopping), body())
    assert (later.status, later.again_in) == (503, 1.0)


async def test_a_model_that_is_not_there_is_unknown_once_the_deployment_has_started(backend, keys_of):
    now = 0.0

    async def again_in(leases):
        backend.lease_list = leases
        app = app_of(backend, keys_of({"sk-north": "north"}))
        own = OwnRequests(app, lambda: 0.0)
        own._clock = lambda: now
        reply, _ = await asked(own, body(model="none"))
        assert reply.status == 404
        return reply.again_in

    there = backend.lease_list
    assert await again_in(there) is not None, "its processes may come a moment later"
    now = 31.0
    assert await again_in(there) is None, "others answer, and of it not even a scheduler runs"
    assert await again_in([]) is not None, "none answers: the deployment may still be starting"
    now = 601.0
    assert await again_in([]) is None


async def test_a_bug_is_an_answer(own, tokenizer, backend):
    def broken(model):
        raise ValueError("a bug")

    backend.tokenizer = broken
    reply, text = await asked(own, body())
    assert (reply.status, reply.again_in) == (500, None)
    assert json.loads(text)["error"]["code"] == "internal_error"
