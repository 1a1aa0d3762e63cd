"""The process as a whole, over the in-memory bus: what it says of itself, what it serves, how it ends."""

import asyncio
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto.rpc import MemoryBus, Node
from proto.sampling import greedy
from proto.sampling_pb2 import StopConditions
from proto.scheduler_pb2 import GenerateRequest, Start
from proto.scheduler_pb2_grpc import SchedulerStub
from proto.worker_pb2_grpc import add_WorkerServicer_to_server
from scheduler_svc.__main__ import serve
from scheduler_svc.settings import SchedulerSettings

PROMPT = [3, 1, 4, 1, 5]


def start(max_tokens: int = 12) -> GenerateRequest:
    sampling = greedy(temperature=1, seed=7)
    packed = struct.pack(f"<{len(PROMPT)}i", *PROMPT)
    stop = StopConditions(max_tokens=max_tokens)
    return GenerateRequest(start=Start(prompt_tokens=packed, sampling=sampling, stop=stop, n=1))


async def tokens_of(call: Any) -> list[int]:
    tokens: list[int] = []
    async for response in call:
        for delta in response.deltas:
            tokens += struct.unpack(f"<{len(delta.tokens) // 4}i", delta.tokens)
    return tokens


@pytest.fixture
async def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
async def client(bus: MemoryBus) -> AsyncIterator[Node]:
    async with Node(bus, service="client") as node:
        yield node


@pytest.fixture
async def worker_node(bus: MemoryBus) -> AsyncIterator[Node]:
    async with Node(bus, service="worker") as node:
        yield node


async def offer(client: Node, workers: int) -> dict[str, Any]:
    """What the scheduler's lease says once it has a number of workers."""
    while True:
        leases = [each for each in await client.leases() if each.service == "scheduler"]
        if leases and leases[0].info.get("workers") == workers:
            return leases[0].info
        await asyncio.sleep(0.005)


async def test_serves_its_pool_and_says_so(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node
) -> None:
    async with asyncio.timeout(20), Node(bus, service="scheduler") as node:
        process = asyncio.ensure_future(serve(node, SchedulerSettings(model_name="fox")))
        assert await offer(client, workers=0) == {"model": "fox", "workers": 0, "max_model_len": 0}
        # Called before there is a worker: the call waits at the door.
        call = SchedulerStub(client.channel(pool="fox")).Generate(iter([start()]), wait_for_ready=True)

        workers = fake.Workers(fake.limits(max_model_len=48))
        server = worker_node.server(pool="fox", capacity=1)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        await server.start()
        assert await offer(client, workers=1) == {"model": "fox", "workers": 1, "max_model_len": 48}

        assert await tokens_of(call) == fake.reference(fake.request(PROMPT, max_tokens=12), 0, 48)

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await tokens_of(SchedulerStub(client.channel(pool="fox")).Generate(iter([start(max_tokens=99)])))
        assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE
        assert ("quire-param", "max_tokens") in tuple(error.value.trailing_metadata())

        # What runs may finish once the process is told to end.
        last = SchedulerStub(client.channel(pool="fox")).Generate(iter([start(max_tokens=0)]))
        first = await anext(aiter(last))
        process.cancel()
        rest = await tokens_of(last)
        assert [*struct.unpack("<i", first.deltas[0].tokens), *rest] == fake.reference(
            fake.request(PROMPT), 0, 48
        )
        with pytest.raises(asyncio.CancelledError):
            await process
        assert not workers.faults


async def test_a_worker_that_goes_is_replaced(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node
) -> None:
    async with asyncio.timeout(20), Node(bus, service="scheduler") as node:
        process = asyncio.ensure_future(serve(node, SchedulerSettings(model_name="fox")))
        workers = fake.Workers(fake.limits())
        server = worker_node.server(pool="fox", capacity=2)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        await server.start()
        await offer(client, workers=1)
        call = SchedulerStub(client.channel(pool="fox")).Generate(iter([start(max_tokens=0)]))
        first = await call.read()
        workers.kill()
        await offer(client, workers=0)
        workers.join()
        given = struct.unpack("<i", first.deltas[0].tokens)
        rest: list[int] = []
        while (response := await call.read()) is not grpc.aio.EOF:
            rest += [token for delta in response.deltas for token in struct.unpack("<i", delta.tokens)]
        assert [*given, *rest] == fake.reference(fake.request(PROMPT), 0, 64)
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)
        assert not workers.faults
