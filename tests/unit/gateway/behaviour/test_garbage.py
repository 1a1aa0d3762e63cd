"""Nothing of a request is left to the collector of garbage: it runs seldom, and a request may be large."""

import asyncio
import contextlib
import gc
import json

import grpc
import pytest

from gateway.upstream.generation import Generation
from tests.unit.gateway.conftest import tell

ASK = {"model": "m", "prompt": "A", "max_tokens": 1}


@pytest.fixture
def left():
    """What there is of generations that were not there before; nothing is collected meanwhile."""

    def all_of_them():
        return [each for each in gc.get_objects() if isinstance(each, Generation)]

    gc.collect()
    before = all_of_them()
    gc.disable()
    yield lambda: [each for each in all_of_them() if each not in before]
    gc.enable()


async def settled(left):
    """What is left when all that runs has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while left():
                await asyncio.sleep(0.01)
    return left()


@pytest.mark.parametrize("stream", [False, True])
async def test_of_an_answer(gateway, left, stream):
    answer = await gateway.http.post("/v1/completions", json=ASK | {"stream": stream})
    assert answer.status_code == 200
    assert await settled(left) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_of_a_request_that_the_services_refuse(gateway, left, stream):
    async def refuse(request, context):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the prompt is too long")
        yield

    gateway.tokenizer.generate = refuse
    answer = await gateway.http.post("/v1/completions", json=ASK | {"stream": stream})
    assert answer.status_code == 400
    assert await settled(left) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_of_a_request_whose_client_leaves(gateway, left, stream):
    begun = asyncio.Event()

    async def endless(request, context):
        async for chunk in tell(request, context):
            yield chunk
            begun.set()
            await asyncio.sleep(60)

    gateway.tokenizer.generate = endless
    _, writer = await asyncio.open_connection(*gateway.address)
    body = json.dumps(ASK | {"stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
    await asyncio.wait_for(begun.wait(), 60)
    writer.close()
    assert await settled(left) == []
