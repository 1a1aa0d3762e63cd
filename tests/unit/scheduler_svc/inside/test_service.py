"""The service over plain gRPC on loopback, with fake workers behind it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto.arrays import pack, unpack
from proto.inside_pb2 import Look, WatchRequest
from proto.inside_pb2_grpc import InsideStub, add_InsideServicer_to_server
from proto.sampling import greedy
from proto.sampling_pb2 import StopConditions
from proto.scheduler_pb2 import Start
from proto.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from scheduler_svc.engine import Engine
from scheduler_svc.inside import lookout
from scheduler_svc.inside import service as inside
from scheduler_svc.inside.service import InsideService
from scheduler_svc.intake import request_from
from scheduler_svc.settings import SchedulerSettings


class Stage:
    """A scheduler, its workers, and a stub with which to look inside."""

    def __init__(self, fake: SimpleNamespace) -> None:
        self.fake = fake
        self.workers = fake.Workers(fake.limits(num_blocks=24, block_size=4, max_model_len=48))
        self.counts: asyncio.Queue[int] = asyncio.Queue()
        self.failures: list[BaseException] = []

    async def __aenter__(self) -> "Stage":
        self._server = grpc.aio.server()
        add_WorkerServicer_to_server(self.workers, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}")]
        settings = SchedulerSettings(model_name="m")
        self.engine = Engine(
            WorkerStub(self._channels[0]),
            settings,
            lambda count, _: self.counts.put_nowait(count),
            self.failures.append,
        )
        self._running = asyncio.ensure_future(self.engine.run())
        self._inside = grpc.aio.server()
        add_InsideServicer_to_server(InsideService(self.engine, "scheduler-1"), self._inside)
        port = self._inside.add_insecure_port("127.0.0.1:0")
        await self._inside.start()
        self._channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        self.stub = InsideStub(self._channels[1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inside.stop(None)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._server.stop(None)
        for channel in self._channels:
            await channel.close()
        assert not self.failures

    async def joined(self) -> None:
        self.workers.join()
        while not await self.counts.get():
            pass

    async def answer(self) -> None:
        """One request from its beginning to its end."""
        start = Start(
            request_id="r",
            prompt_tokens=pack([1] * 9),
            sampling=greedy(temperature=1, seed=7),
            stop=StopConditions(max_tokens=6),
            n=1,
        )
        group, call = self.engine.open(request_from(start, ""))
        while await call.get() is not None:
            pass
        self.engine.close(group)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LOOK_SECONDS", 0.001)


async def watch(call: Any, enough: Any) -> list[Look]:
    """Looks until one that is enough."""
    looks = []
    async with asyncio.timeout(60):
        async for look in call:
            looks.append(look)
            if enough(look):
                return looks
    raise AssertionError("the call has ended")


async def test_a_request_is_seen_to_come_and_go(fake: SimpleNamespace) -> None:
    async with Stage(fake) as stage:
        await stage.joined()
        call = stage.stub.Watch(WatchRequest(schedulers=["scheduler-2"]))
        (first,) = await watch(call, lambda look: True)
        assert first.scheduler == "scheduler-1"
        assert [worker.limits.blocks for worker in first.workers] == [24]
        await stage.answer()
        seen: dict[int, int] = {}
        steps = 0
        for look in await watch(
            call, lambda look: look.totals.prompt_tokens == first.totals.prompt_tokens + 9
        ):
            for worker in look.workers:
                steps += len(worker.steps)
                seen.update(zip(unpack(worker.blocks), unpack(worker.states), strict=True))
        cached = sum(1 for state in seen.values() if state == 1)
        assert steps >= 6
        assert cached == 3  # of 14 computed tokens in blocks of four
        call.cancel()


async def test_who_comes_later_is_told_everything(fake: SimpleNamespace) -> None:
    async with Stage(fake) as stage:
        await stage.joined()
        await stage.answer()
        first = stage.stub.Watch(WatchRequest())
        (look,) = await watch(first, lambda look: True)
        second = stage.stub.Watch(WatchRequest())
        (same,) = await watch(second, lambda look: True)
        assert list(unpack(look.workers[0].blocks)) == list(unpack(same.workers[0].blocks)) == [0, 1, 2]
        first.cancel()
        second.cancel()


async def test_nothing_is_noted_while_nobody_looks(fake: SimpleNamespace) -> None:
    async with Stage(fake) as stage:
        await stage.joined()
        call = stage.stub.Watch(WatchRequest())
        await watch(call, lambda look: True)
        (link,) = stage.engine.links.values()
        pool = link.scheduler.state.batch.pool
        assert (len(pool.watches), len(link.step_logs)) == (1, 1)
        call.cancel()
        async with asyncio.timeout(60):
            while pool.watches or link.step_logs:
                await asyncio.sleep(0.001)


async def test_a_lost_worker_is_told(fake: SimpleNamespace) -> None:
    async with Stage(fake) as stage:
        await stage.joined()
        call = stage.stub.Watch(WatchRequest())
        (first,) = await watch(call, lambda look: True)
        stage.workers.kill()
        *_, last = await watch(call, lambda look: look.lost)
        assert list(last.lost) == [first.workers[0].number]
        call.cancel()


async def test_one_that_is_watched_already_says_so(fake: SimpleNamespace) -> None:
    async with Stage(fake) as stage:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await watch(stage.stub.Watch(WatchRequest(schedulers=["scheduler-1"])), lambda look: True)
        assert error.value.code() == grpc.StatusCode.ALREADY_EXISTS


async def test_what_does_not_fit_into_one_look_comes_with_the_next(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "MOST_NUMBERS", 4)
    async with Stage(fake) as stage:
        await stage.joined()
        await stage.answer()
        call = stage.stub.Watch(WatchRequest())
        looks = await watch(call, lambda look: 2 in unpack(look.workers[0].blocks))
        assert [list(unpack(look.workers[0].blocks)) for look in looks] == [[0], [1], [2]]
        call.cancel()
