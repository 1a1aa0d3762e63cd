"""The process as a whole, over the in-memory bus: what it says of itself, what it serves, how it ends."""

import asyncio
import os
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto.rpc import MemoryBus, Node, Resumption
from proto.rpc import lease as lease_module
from proto.rpc.resume import REFUSED_ATTEMPT
from proto.sampling import greedy
from proto.sampling_pb2 import StopConditions
from proto.scheduler_pb2 import GenerateRequest, Start
from proto.scheduler_pb2_grpc import (
    SchedulerServicer,
    SchedulerStub,
    add_SchedulerServicer_to_server,
)
from proto.worker_pb2_grpc import add_WorkerServicer_to_server
from scheduler_svc import __main__ as main
from scheduler_svc.__main__ import serve
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.engine import Engine
from scheduler_svc.settings import SchedulerSettings

PROMPT = [3, 1, 4, 1, 5]
OFFER = {
    "model": "fox",
    "capacity": 1024,
    "stalled": 0,
    "adapters": [],
    "fingerprints": [],
    "images": False,
    "headless": False,
}


def start(max_tokens: int = 12, prompt: list[int] = PROMPT) -> GenerateRequest:
    sampling = greedy(temperature=1, seed=7)
    packed = struct.pack(f"<{len(prompt)}i", *prompt)
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
    async with Node(bus, service="client", lease_seconds=60) as node:
        yield node


@pytest.fixture
async def worker_node(bus: MemoryBus) -> AsyncIterator[Node]:
    async with Node(bus, service="worker", lease_seconds=60) as node:
        yield node


async def offer(client: Node, workers: int) -> dict[str, Any]:
    """What a scheduler's lease says once it has a number of workers."""
    while True:
        leases = [each for each in await client.leases() if each.service == "scheduler"]
        for lease in leases:
            if lease.info.get("workers") == workers:
                return lease.info
        await asyncio.sleep(0.005)


async def test_serves_its_pool_and_says_so(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node
) -> None:
    async with asyncio.timeout(60), Node(bus, service="scheduler", lease_seconds=60) as node:
        process = asyncio.ensure_future(serve(node, SchedulerSettings(model_name="fox")))
        assert await offer(client, workers=0) == OFFER | {"workers": 0, "max_model_len": 0}
        # Called before there is a worker: the call waits at the door.
        call = SchedulerStub(client.channel(pool="fox")).Generate(iter([start()]), wait_for_ready=True)

        workers = fake.Workers(fake.limits(max_model_len=48, fingerprint="weights"))
        server = worker_node.server(pool="fox", capacity=1)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        await server.start()
        told = {"workers": 1, "max_model_len": 48, "fingerprints": ["weights"]}
        assert await offer(client, workers=1) == OFFER | told

        assert await tokens_of(call) == fake.reference(fake.request(PROMPT, max_tokens=12), 0, 48)

        too_long = start(prompt=[1] * 99)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await tokens_of(SchedulerStub(client.channel(pool="fox")).Generate(iter([too_long])))
        assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE
        assert ("quire-param", "prompt") in tuple(error.value.trailing_metadata())

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


async def test_a_signal_has_it_write_recordings(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node, tmp_path: Path
) -> None:
    settings = SchedulerSettings(model_name="fox", recordings=tmp_path)
    async with asyncio.timeout(60), Node(bus, service="scheduler", lease_seconds=60) as node:
        process = asyncio.ensure_future(serve(node, settings))
        workers = fake.Workers(fake.limits())
        server = worker_node.server(pool="fox", capacity=1)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        await server.start()
        assert (await offer(client, workers=1))["recordings"] == str(tmp_path)
        os.kill(os.getpid(), signal.SIGUSR1)
        while not any(name.endswith(".quire") for name in os.listdir(tmp_path)):
            await asyncio.sleep(0.01)
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)


async def test_a_worker_that_goes_is_replaced(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node
) -> None:
    async with asyncio.timeout(60), Node(bus, service="scheduler", lease_seconds=60) as node:
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


async def test_one_that_stops_hands_its_worker_to_another_that_has_none(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, worker_node: Node
) -> None:
    async with (
        asyncio.timeout(60),
        Node(bus, service="scheduler", lease_seconds=60) as old_node,
        Node(bus, service="scheduler", lease_seconds=60) as new_node,
    ):
        settings = SchedulerSettings(model_name="fox", stop_seconds=3600)
        old = asyncio.ensure_future(serve(old_node, settings))
        workers = fake.Workers(fake.limits(max_model_len=4000, num_blocks=2000))
        server = worker_node.server(pool="fox", capacity=1)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        workers.join()
        await server.start()
        await offer(client, workers=1)
        call = SchedulerStub(client.channel(pool="fox")).Generate(iter([start(max_tokens=0)]))
        await call.read()
        new = asyncio.ensure_future(serve(new_node, settings))
        while not any(one.process_id == new_node.id and one.doors for one in await client.leases()):
            await asyncio.sleep(0)
        old.cancel()
        await asyncio.wait([old])
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        again = SchedulerStub(client.channel(pool="fox")).Generate(
            iter([start(max_tokens=12)]), wait_for_ready=True
        )
        assert await tokens_of(again) == fake.reference(fake.request(PROMPT, max_tokens=12), 0, 4000)
        new.cancel()
        await asyncio.wait([new])
        assert not workers.faults


async def test_a_part_that_fails_is_the_end_of_the_process_and_nothing_is_drained(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Engine) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "run", run)
    async with asyncio.timeout(60), Node(bus, service="scheduler", lease_seconds=60) as node:
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(serve(node, SchedulerSettings(model_name="fox")), 60)


# --- a request at which the core fails ---


class Process:
    """A scheduler that a supervisor starts again whenever it has ended."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.deaths: list[BaseException | None] = []

    async def run(self) -> None:
        """Begin and end, for ever."""
        while True:
            async with Node(self._bus, service="scheduler", lease_seconds=60) as node:
                serving = asyncio.ensure_future(serve(node, SchedulerSettings(model_name="fox")))
                failing = asyncio.ensure_future(node.failed())
                try:
                    await asyncio.wait([failing])
                    self.deaths.append(failing.exception())
                    # As `ops.runtime.process` does, which exits then.
                    await node.link.close(goodbye=True)
                finally:
                    serving.cancel()
                    await asyncio.wait([serving])


async def answer(client: Node, prompt: list[int], until: int) -> list[int]:
    """An answer of `until` tokens, asked for again as a tokenizer does whenever its scheduler is lost."""
    stub, resumption, found = SchedulerStub(client.channel(pool="fox")), Resumption(), list[int]()
    while len(found) < until:
        message = start(max_tokens=until)
        message.start.prompt_tokens = struct.pack(f"<{len(prompt)}i", *prompt)
        if found:
            message.start.resumed.add(index=0, tokens=struct.pack(f"<{len(found)}i", *found))
        call = stub.Generate(metadata=resumption.metadata(), wait_for_ready=True)
        try:
            await call.write(message)
            async for response in call:
                for delta in response.deltas:
                    found += struct.unpack(f"<{len(delta.tokens) // 4}i", delta.tokens)
                resumption.progressed()
        except grpc.aio.AioRpcError as error:
            resumption.retry_or_raise(error)
        finally:
            call.cancel()
    return found


async def test_a_request_at_which_every_core_fails_is_refused_and_no_other(
    fake: SimpleNamespace, bus: MemoryBus, client: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settling always raises. It ends one scheduler after the other, and those beside it go on."""
    poison, settle = [13, 13, 13], Scheduler.settle

    def failing(scheduler: Scheduler, result: StepResult) -> Outcome:
        for sequence in scheduler.flights[0].sequences:
            if list(sequence.group.request.prompt) == poison:
                raise ZeroDivisionError("as no code should")
        return settle(scheduler, result)

    monkeypatch.setattr(Scheduler, "settle", failing)
    monkeypatch.setattr(lease_module, "RENEWALS", 120)  # calls of the dead are taken over after one
    workers = fake.Workers(fake.limits(num_blocks=64, max_slots=8))
    processes = [Process(bus) for _ in range(2)]
    async with asyncio.timeout(200), AsyncExitStack() as stack:
        for _ in processes:
            node = await stack.enter_async_context(Node(bus, service="worker", lease_seconds=60))
            server = node.server(pool="fox", capacity=1)
            add_WorkerServicer_to_server(workers, server)
            workers.join()
            await server.start()
        running = [asyncio.ensure_future(each.run()) for each in processes]
        try:
            refused = asyncio.Event()

            async def bystander(number: int) -> int:
                """Ask again and again until the poison has been refused; the number of answers."""
                prompt, answers = [number + 1] * 3, 0
                expected = fake.reference(fake.request(prompt, max_tokens=40), 0, 64)
                while not refused.is_set() or not answers:
                    assert await answer(client, prompt, 40) == expected
                    answers += 1
                return answers

            bystanders = [asyncio.ensure_future(bystander(number)) for number in range(6)]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer(client, poison, 40)
            refused.set()
            assert caught.value.code() is grpc.StatusCode.ABORTED
            assert "one process after the other" in (caught.value.details() or "")
            assert all(await asyncio.gather(*bystanders))
        finally:
            for each in running:
                each.cancel()
            await asyncio.wait(running)
    deaths = [error for each in processes for error in each.deaths]
    assert [type(error) for error in deaths] == [ZeroDivisionError] * REFUSED_ATTEMPT
    assert not workers.faults


@pytest.mark.parametrize("fits", [True, False])
async def test_one_that_has_lost_its_worker_hands_its_calls_to_another_that_has_one(
    fake: SimpleNamespace,
    bus: MemoryBus,
    client: Node,
    worker_node: Node,
    monkeypatch: pytest.MonkeyPatch,
    fits: bool,
) -> None:
    async with (
        asyncio.timeout(60),
        Node(bus, service="scheduler", lease_seconds=60) as node,
        Node(bus, service="scheduler", lease_seconds=60) as other,
    ):
        process = asyncio.ensure_future(serve(node, SchedulerSettings(model_name="fox")))
        workers = fake.Workers(fake.limits(max_model_len=4000, num_blocks=2000, max_slots=2))
        server = worker_node.server(pool="fox", capacity=1)
        add_WorkerServicer_to_server(workers, server)
        workers.join()
        await server.start()
        await offer(client, workers=1)
        stub = SchedulerStub(client.channel(pool="fox"))
        computed, longer, waits = (stub.Generate(iter([start(max_tokens=most)])) for most in (0, 3900, 3900))
        await computed.read()
        await longer.read()
        peer = other.server(pool="fox", capacity=0)
        add_SchedulerServicer_to_server(SchedulerServicer(), peer)
        await peer.start()
        workers.kill()
        await offer(client, workers=0)
        await asyncio.sleep(0.7)
        assert not computed.done(), "there is nobody to go on with it"
        await other.update(workers=1, max_model_len=3900)
        for call, lost in ((computed, True), (waits, False)):
            with pytest.raises(grpc.aio.AioRpcError):
                await tokens_of(call)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            keys = {key for key, _ in await call.trailing_metadata()}
            assert ("quire-lost" in keys) is lost, "only what was computed when the worker died is a suspect"
            assert ("quire-outside" in keys) is not lost
        assert not longer.done(), "the other would cut it short"
        if fits:
            await other.update(workers=1, max_model_len=3905)
        else:
            monkeypatch.setattr(main, "STRANDED_SECONDS", 0.0)
        assert await longer.code() is grpc.StatusCode.UNAVAILABLE
        process.cancel()
        await asyncio.wait([process])
