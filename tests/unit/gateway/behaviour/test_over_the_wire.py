"""The gateway's own backend: leases, front doors and deaths on a bus."""

import asyncio
from contextlib import AsyncExitStack

import httpx
import pytest_asyncio

from gateway.upstream.backend import NodeBackend
from proto.rpc import MemoryBus, Node
from proto.tokenizer_pb2_grpc import add_TokenizerServicer_to_server
from tests.unit.gateway.conftest import app_of

COMPLETIONS = "/v1/completions"
ASK = {"model": "m", "prompt": "A", "seed": 1}


class Deployment:
    """A gateway, a scheduler that only has a lease, and tokenizer processes, all in this process."""

    def __init__(self, stack: AsyncExitStack, http: httpx.AsyncClient, bus: MemoryBus) -> None:
        self.http = http
        self._stack = stack
        self._bus = bus

    async def tokenizer(self, servicer) -> AsyncExitStack:
        """One more tokenizer process; closing what is returned ends it."""
        own = await self._stack.enter_async_context(AsyncExitStack())
        node = await own.enter_async_context(Node(self._bus, "tokenizer", {"model": "m"}, lease_seconds=60))
        server = node.server(pool="m")
        add_TokenizerServicer_to_server(servicer, server)
        await server.start()
        return own


@pytest_asyncio.fixture
async def deployment():
    async with AsyncExitStack() as stack:
        bus = MemoryBus()
        info = {"model": "m", "workers": 1, "max_model_len": 64}
        await stack.enter_async_context(Node(bus, "scheduler", info, lease_seconds=60))
        node = await stack.enter_async_context(Node(bus, "gateway", lease_seconds=60))
        transport = httpx.ASGITransport(app_of(NodeBackend(node)))
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
        yield Deployment(stack, await stack.enter_async_context(http), bus)


async def test_an_answer_comes_over_the_bus(deployment, tokenizer):
    assert (await deployment.http.get("/health/ready")).json()["missing"] == ["tokenizer of m"]
    await deployment.tokenizer(tokenizer)
    answer = await deployment.http.post(COMPLETIONS, json=ASK)
    assert answer.json()["choices"][0]["text"] == "Once upon a time, a fox saw snow ❄."


async def test_a_request_waits_at_the_door_for_a_model_that_is_on_its_way(deployment, tokenizer):
    answer = asyncio.ensure_future(deployment.http.post(COMPLETIONS, json=ASK))
    await asyncio.sleep(0)
    await deployment.tokenizer(tokenizer)
    assert (await asyncio.wait_for(answer, 60)).status_code == 200


async def test_a_process_that_ends_in_the_middle_is_replaced(deployment, tokenizer):
    tell, stuck = tokenizer.generate, asyncio.Event()

    async def stopping(request, context):
        told = 0
        async for chunk in tell(request, context):
            yield chunk
            told += 1
            if told == 5 and not request.resumed:
                stuck.set()
                await asyncio.Event().wait()

    tokenizer.generate = stopping
    first = await deployment.tokenizer(tokenizer)
    answer = asyncio.ensure_future(deployment.http.post(COMPLETIONS, json=ASK))
    await asyncio.wait_for(stuck.wait(), 60)
    await first.aclose()
    await deployment.tokenizer(tokenizer)
    assert (await asyncio.wait_for(answer, 60)).json()["choices"][0][
        "text"
    ] == "Once upon a time, a fox saw snow ❄."
    assert [len(so_far.token_ids) for so_far in tokenizer.requests[1].resumed] == [4]
