"""The process: what it says of itself, what it serves, and how it refuses to start."""

import asyncio
import threading

import grpc
import pytest

from gpu_worker import __main__ as main
from gpu_worker import engine
from gpu_worker.__main__ import serve
from gpu_worker.errors import DeviceError
from gpu_worker.settings import WorkerSettings
from gpu_worker.step.runner import Runner
from gpu_worker.watchdog import Watchdog
from ops.runtime.errors import StartError
from proto.rpc import MemoryBus, Node
from proto.worker_pb2_grpc import WorkerStub


async def test_a_worker_on_the_bus(make, tiny) -> None:
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()
    async with Node(bus, service="worker") as node, Node(bus, service="scheduler") as scheduler:
        serving = asyncio.ensure_future(serve(node, settings))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).ready.model == "tiny"
        lease = next(lease for lease in await scheduler.leases() if lease.service == "worker")
        assert lease.info == {"model": "tiny", "device": "cpu", "dtype": "float32"}
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        tokens = make.unpack((await call.read()).result.tokens)
        assert tokens == make.expected(tiny.model, [1, 2, 3], 1)
        call.cancel()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


async def test_a_directory_that_is_no_model_keeps_it_from_starting(tmp_path) -> None:
    async with Node(MemoryBus(), service="worker") as node:
        with pytest.raises(StartError, match="not a model directory"):
            await serve(node, WorkerSettings(model=tmp_path))


async def test_a_worker_whose_gpu_is_lost_ends(make, tiny, monkeypatch) -> None:
    """It must not take another call, which would fail too."""
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    bus = MemoryBus()
    async with Node(bus, service="worker") as node, Node(bus, service="scheduler") as scheduler:
        serving = asyncio.ensure_future(serve(node, settings))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).HasField("ready")
        monkeypatch.setattr(engine, "is_lost", lambda device: True)
        monkeypatch.setattr(Runner, "begin", fail)
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        with pytest.raises(DeviceError, match="an illegal memory access"):
            await asyncio.wait_for(serving, 10)
        assert await call.code() is not grpc.StatusCode.OK


async def test_a_worker_whose_device_hangs_ends(make, tiny, monkeypatch) -> None:
    settings = WorkerSettings(model=tiny.directory, model_name="tiny", device="cpu", threads=1, max_slots=4)
    ended = asyncio.get_running_loop().create_future()
    continued = threading.Event()
    monkeypatch.setattr(engine, "Watchdog", lambda: Watchdog(patience=0.3))
    monkeypatch.setattr(main, "end_at_once", ended.set_result)
    bus = MemoryBus()
    async with Node(bus, service="worker") as node, Node(bus, service="scheduler") as scheduler:
        serving = asyncio.ensure_future(serve(node, settings))
        call = WorkerStub(scheduler.channel(pool="tiny")).Execute(wait_for_ready=True)
        assert (await call.read()).HasField("ready")
        await call.write(make.plan(1, [(0, 0, 3, 1)], new_slots=[make.slot(0, [1, 2, 3], [0])]))
        assert (await call.read()).result.step == 1
        await asyncio.sleep(0.5)
        assert not ended.done(), "one that has nothing to do does not hang"
        monkeypatch.setattr(Runner, "begin", lambda *_: continued.wait(10))
        await call.write(make.plan(2, [(0, 3, 1, 1)]))
        assert "a step of 1 tokens has not ended after 0 s" in await asyncio.wait_for(ended, 10)
        continued.set()
        call.cancel()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


def fail(runner, plan):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
