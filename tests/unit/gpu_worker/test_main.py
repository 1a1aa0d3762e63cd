"""The process: what it says of itself, what it serves, and how it refuses to start."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from gpu_worker import __main__ as main
from gpu_worker import engine
from gpu_worker.__main__ import serve
from gpu_worker.errors import CapacityError, DeviceError, NoDeviceError, OutOfMemoryError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.machine.rates import Rates
from gpu_worker.settings import WorkerSettings
from gpu_worker.step.runner import Runner
from gpu_worker.watchdog import Watchdog
from ops.runtime import drain
from ops.runtime.errors import StartError
from proto.rpc import MemoryBus, Node, TaskEnded
from proto.rpc.resume import LOST, OUTSIDE
from proto.worker_pb2_grpc import WorkerServicer, WorkerStub, add_WorkerServicer_to_server
from tests.unit.gpu_worker.conftest import makers


@pytest.fixture(autouse=True)
def rates(monkeypatch) -> Rates:
    """A machine that need not be measured."""
    found = Rates(read=38e9, matrix=1.2e12)
    monkeypatch.setattr(main, "rates_of", lambda _: found)
    return found


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Messages and expected tokens: a worker chooses its kernels by itself."""
    return makers(ReferenceKernels())


@asynccontextmanager
async def begun(tiny: SimpleNamespace, **changes: Any) -> AsyncIterator[SimpleNamespace]:
    """A worker that serves on a bus, and a scheduler's call of it. `changes`: of its settings."""
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()
    async with (
        asyncio.timeout(200),
        Node(bus, service="worker", lease_seconds=60) as node,
        Node(bus, service="scheduler", lease_seconds=60, quiet_seconds=0.2) as scheduler,
    ):
        serving = asyncio.ensure_future(serve(node, settings.model_copy(update=changes)))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).HasField("ready")
        yield SimpleNamespace(bus=bus, serving=serving, call=call)


async def test_the_lease_says_what_is_being_done_until_all_is_loaded(tiny, monkeypatch) -> None:
    stages: list[str] = []
    update = Node.update

    async def watched(node: Node, **info: Any) -> None:
        await update(node, **info)
        if "stage" in info:
            stages.append(info["stage"])

    monkeypatch.setattr(Node, "update", watched)
    async with begun(tiny):
        assert stages[:2] == ["fetching the model", "measuring this machine"]
        assert stages.index("loading weights") > stages.index(
            "preparing kernels, which a first start compiles"
        )
        assert stages[-1] == ""


async def test_a_worker_on_the_bus(make, tiny, caplog) -> None:
    caplog.set_level("INFO")
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()
    async with (
        Node(bus, service="worker", lease_seconds=60) as node,
        Node(bus, service="scheduler", lease_seconds=60) as scheduler,
    ):
        serving = asyncio.ensure_future(serve(node, settings))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).ready.model == "tiny"
        lease = next(lease for lease in await scheduler.leases() if lease.service == "worker")
        offered = {"model": "tiny", "device": "cpu", "dtype": "float32", "slots": 4, "stage": ""}
        assert {name: lease.info[name] for name in offered} == offered
        assert lease.info["fingerprint"]
        best = build.supported()[0]
        assert lease.info["products"] == f"1.2 TFLOP/s ({best})"
        assert lease.info["memory"] == "38 GB/s"
        assert f"this machine: products 1.2 TFLOP/s ({best}), memory 38 GB/s" in caplog.text
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        tokens = make.unpack((await call.read()).result.tokens)
        assert tokens == make.expected(tiny.model, [1, 2, 3], 1)
        call.cancel()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_steps_that_are_slow_are_in_the_lease(tiny, monkeypatch) -> None:
    """What the thread that computes has found is in the lease a moment later, and gone when it has ended."""
    notes: list[Callable[[str], None]] = []
    monkeypatch.setattr(main, "pace_of", lambda *arguments: notes.append(arguments[-1]))
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()

    async def said(name: str) -> Any:
        leases = [lease for lease in await scheduler.leases() if lease.service == "worker"]
        return leases[0].info.get(name) if leases else None

    async with (
        Node(bus, service="worker", lease_seconds=60) as node,
        Node(bus, service="scheduler", lease_seconds=60) as scheduler,
    ):
        serving = asyncio.ensure_future(serve(node, settings))
        async with asyncio.timeout(60):
            while not notes:
                await asyncio.sleep(0.01)
            for slow in ("attention, 4.2 times the floor", ""):
                await asyncio.to_thread(notes[0], slow)
                while await said("slow") != slow:
                    await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_asked_to_stop_it_goes_on_until_another_worker_is_there(make, tiny, monkeypatch) -> None:
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.001)
    looks, stepped, peers = 0, asyncio.Event(), drain.peers

    async def after_a_step(*arguments: Any) -> Any:
        """Between two looks there is a step, however slow the machine is: it does not rest."""
        nonlocal looks
        looks += 1
        stepped.clear()
        await stepped.wait()
        return await peers(*arguments)

    monkeypatch.setattr(drain, "peers", after_a_step)
    async with (
        begun(tiny, stop_seconds=3600) as world,
        Node(world.bus, service="worker", lease_seconds=60) as other,
    ):
        call = world.call
        world.serving.cancel()
        slot = make.slot(0, [1, 2, 3], [0])
        for step in range(1, 6):
            rows = [(0, 0, 3, 1)] if step == 1 else [(0, step + 1, 1, 1)]
            await call.write(make.plan(step, rows, new_slots=[slot] if step == 1 else []))
            assert (await call.read()).result.step == step
            stepped.set()
            while looks < step:  # it has looked, and goes on
                await asyncio.sleep(0.001)
        server = other.server(pool="tiny", capacity=1)
        add_WorkerServicer_to_server(WorkerServicer(), server)
        await server.start()
        stepped.set()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait([world.serving])


async def test_asked_to_stop_it_ends_when_it_rests(tiny, monkeypatch) -> None:
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.1)
    async with begun(tiny, stop_seconds=3600) as world:
        world.serving.cancel()
        await asyncio.wait([world.serving])
        assert await world.call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_directory_that_is_no_model_keeps_it_from_starting(tmp_path) -> None:
    async with Node(MemoryBus(), service="worker", lease_seconds=60) as node:
        with pytest.raises(StartError, match="not a model directory"):
            await serve(node, WorkerSettings(model=tmp_path))


@pytest.mark.parametrize(("error", "status"), [(OutOfMemoryError, 1), (NoDeviceError, 1), (CapacityError, 2)])
async def test_only_memory_that_others_may_have_lets_it_try_again(
    tiny, monkeypatch, error: type[Exception], status: int
) -> None:
    def short(*_: Any, **__: Any) -> None:
        raise error("no memory")

    monkeypatch.setattr(main, "load", short)
    async with Node(MemoryBus(), service="worker", lease_seconds=60) as node:
        with pytest.raises(StartError, match="no memory") as caught:
            await serve(node, WorkerSettings(model=tiny.directory, device="cpu", threads=1))
    assert caught.value.exit_status == status


async def test_a_worker_whose_gpu_is_lost_ends(make, tiny, monkeypatch) -> None:
    """It must not take another call, which would fail too."""
    async with begun(tiny) as world:
        call = world.call
        monkeypatch.setattr(engine, "is_lost", lambda device: True)
        monkeypatch.setattr(Runner, "begin", fail)
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        with pytest.raises(DeviceError, match="an illegal memory access"):
            await asyncio.wait_for(world.serving, 60)
        assert await call.code() is not grpc.StatusCode.OK
        assert OUTSIDE not in dict(await call.trailing_metadata()), "the step may be the reason"


async def test_a_worker_whose_device_hangs_ends(make, tiny, monkeypatch) -> None:
    ended = asyncio.get_running_loop().create_future()
    continued = threading.Event()
    monkeypatch.setattr(engine, "Watchdog", lambda: Watchdog(patience=0.3))
    monkeypatch.setattr(main, "end_at_once", ended.set_result)
    async with begun(tiny) as world:
        call = world.call
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        assert (await call.read()).result.step == 1
        await asyncio.sleep(0.5)
        assert not ended.done(), "one that has nothing to do does not hang"
        monkeypatch.setattr(Runner, "begin", lambda *_: continued.wait(200))
        await call.write(make.plan(2, [(0, 3, 1, 1)]))
        # After 0.3 s; later on a machine that is busy.
        assert re.match(r"a step of 1 tokens has not ended after \d+ s", await asyncio.wait_for(ended, 200))
        continued.set()
        call.cancel()
        with pytest.raises(TaskEnded, match="watches the device"):
            await world.serving


async def test_a_worker_whose_engine_has_ended_does_not_say_that_it_was_stopped(
    make, tiny, monkeypatch
) -> None:
    """Otherwise a request that ends the thread of every worker would never be a suspect."""
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()
    async with (
        Node(bus, service="worker", lease_seconds=60) as node,
        Node(bus, service="scheduler", lease_seconds=60) as scheduler,
    ):
        serving = asyncio.ensure_future(serve(node, settings))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).HasField("ready")
        monkeypatch.setattr(Watchdog, "answered", lambda *_: 1 / 0)
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(serving, 60)
        await node.link.close(goodbye=True)  # as `ops.runtime.process` does, which exits then
        assert await asyncio.wait_for(call.code(), 60) is grpc.StatusCode.UNAVAILABLE
        assert dict(await call.trailing_metadata()) == {LOST: node.id}


def fail(runner, plan):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
