"""The engine without its servicer: calls are served by workers that come, go, fail and lie."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto.worker_pb2 import StepResult
from proto.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from scheduler_svc import engine as module
from scheduler_svc.call import Call
from scheduler_svc.core.errors import RequestPoisoned, RequestRefused, RowFailed, TooMuchWaits
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.engine import Engine
from scheduler_svc.intake import request_from
from scheduler_svc.settings import SchedulerSettings
from tests.unit.scheduler_svc.test_service import pack, start, unpack


class Rig:
    """An engine, and the door at which its workers are."""

    def __init__(self, fake: SimpleNamespace, limits: WorkerLimits, **settings: Any) -> None:
        self.fake = fake
        self.workers = fake.Workers(limits)
        self.settings = SchedulerSettings(model_name="m", **settings)
        self.announced: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    async def __aenter__(self) -> "Rig":
        self._server = grpc.aio.server()
        add_WorkerServicer_to_server(self.workers, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

        def announce(workers: int, longest: int) -> None:
            self.announced.put_nowait((workers, longest))

        self.engine = Engine(WorkerStub(self._channel), self.settings, announce)
        self.running = asyncio.ensure_future(self.engine.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self._channel.close()
        await self._server.stop(None)
        assert not self.workers.faults

    async def join(self, workers: int = 1) -> None:
        self.workers.join()
        while (await self.announced.get())[0] != workers:
            pass

    async def lose(self) -> None:
        """Kill the workers, and wait until the engine knows."""
        self.workers.kill()
        while (await self.announced.get())[0] != 0:
            pass

    def open(self, prompt: list[int], watch: Any = None, **fields: Any) -> tuple[SequenceGroup, Call]:
        return self.engine.open(request_from(start(prompt, **fields).start, ""), watch)

    def expected(self, prompt: list[int], index: int = 0, **fields: Any) -> list[int]:
        request = self.fake.request(prompt, **{"seed": 7, "max_tokens": 8, **fields})
        return list(self.fake.reference(request, index, self.workers.limits.max_length))

    def held(self) -> int:
        """Blocks that are held, once the books have been checked."""
        for scheduler in self.engine._fleet.schedulers:
            scheduler.check_integrity()
        return sum(scheduler.held_blocks for scheduler in self.engine._fleet.schedulers)


async def tokens_of(call: Call) -> dict[int, list[int]]:
    """Everything that a call delivers, by sequence. Raises the error that ends it."""
    tokens: dict[int, list[int]] = {}
    while (response := await call.next()) is not None:
        for delta in response.deltas:  # type: ignore[union-attr]
            tokens.setdefault(delta.index, []).extend(unpack(delta.tokens))
    if call.error is not None:
        raise call.error
    return tokens


@pytest.fixture
async def rig(fake: SimpleNamespace) -> AsyncIterator[Rig]:
    async with asyncio.timeout(20), Rig(fake, fake.limits(num_blocks=64, max_slots=8)) as rig:
        yield rig


async def test_calls_get_what_their_sequences_gain(rig: Rig) -> None:
    await rig.join()
    calls = [rig.open([number, 1], n=2, seed=number)[1] for number in range(5)]
    for number, call in enumerate(calls):
        samples = [rig.expected([number, 1], index, seed=number) for index in range(2)]
        assert await tokens_of(call) == dict(enumerate(samples))
    assert rig.held() == 0


async def test_workers_are_announced_as_they_come_and_go(rig: Rig) -> None:
    rig.workers.join()
    assert await rig.announced.get() == (1, 64)
    rig.workers.kill()
    assert await rig.announced.get() == (0, 0)


async def test_a_closed_call_frees_what_it_holds(rig: Rig) -> None:
    await rig.join()
    group, call = rig.open([1] * 21, n=4, max_tokens=0)
    await call.next()
    assert rig.held() > 0
    rig.engine.close(group)
    assert rig.held() == 0
    rig.engine.close(group)  # once more changes nothing


async def test_a_call_ends_with_its_last_sequence(rig: Rig) -> None:
    await rig.join()
    group, call = rig.open([1, 2], n=2, max_tokens=0)
    await call.next()
    rig.engine.end_sequence(group, 0)
    assert group.unfinished == 1
    rig.engine.end_sequence(group, 1)
    await tokens_of(call)
    assert rig.held() == 0


async def test_states_are_watched(rig: Rig) -> None:
    await rig.join()
    seen: list[State] = []

    def watch(sequence: Sequence) -> None:
        seen.append(sequence.state)

    await tokens_of(rig.open([1, 2], watch)[1])
    assert seen == [State.WAITING, State.PREFILL, State.DECODE, State.DONE]


async def test_requests_wait_for_a_worker(rig: Rig) -> None:
    (_, call), (_, refused) = rig.open([4]), rig.open([4] * 100)
    await rig.join()
    assert await tokens_of(call) == {0: rig.expected([4])}
    with pytest.raises(RequestRefused):
        await tokens_of(refused)


async def test_a_full_queue_refuses_what_has_not_begun(fake: SimpleNamespace) -> None:
    async with asyncio.timeout(20), Rig(fake, fake.limits(max_slots=1), max_waiting_requests=1) as rig:
        rig.open([1])
        with pytest.raises(TooMuchWaits):
            rig.open([2])
        begun = rig.expected([3])
        resumed = [{"index": 0, "tokens": pack(begun[:3])}]
        _, call = rig.open([3], resumed=resumed)
        await rig.join()
        assert await tokens_of(call) == {0: begun[3:]}


async def test_a_worker_that_dies_is_not_noticed(rig: Rig) -> None:
    await rig.join()
    calls = [rig.open([number, number], n=2, max_tokens=20)[1] for number in range(5)]
    firsts = [await call.next() for call in calls]
    await rig.lose()
    rig.workers.join()
    for number, (call, first) in enumerate(zip(calls, firsts, strict=True)):
        tokens = {delta.index: unpack(delta.tokens) for delta in first.deltas}  # type: ignore[union-attr]
        for index, more in (await tokens_of(call)).items():
            tokens.setdefault(index, []).extend(more)
        assert tokens == {index: rig.expected([number] * 2, index, max_tokens=20) for index in range(2)}
    assert len(rig.workers.workers) == 2
    assert rig.held() == 0


async def test_two_workers_share(rig: Rig) -> None:
    await rig.join(1)
    await rig.join(2)
    calls = [rig.open([number], max_tokens=30)[1] for number in range(6)]
    assert [await tokens_of(call) for call in calls] == [
        {0: rig.expected([number], max_tokens=30)} for number in range(6)
    ]
    assert all(worker.computed_tokens for worker in rig.workers.workers)


async def test_a_request_that_kills_workers_is_ended(rig: Rig) -> None:
    await rig.join()
    rig.workers.going.clear()
    _, call = rig.open([1])
    for _ in range(2):
        while not any(scheduler.in_flight for scheduler in rig.engine._fleet.schedulers):
            await asyncio.sleep(0.001)
        await rig.lose()
        await rig.join()
    with pytest.raises(RequestPoisoned, match="two workers"):
        await tokens_of(call)
    rig.workers.going.set()
    assert await tokens_of(rig.open([2])[1]) == {0: rig.expected([2])}


async def test_a_row_error_ends_its_call_alone(rig: Rig) -> None:
    await rig.join()
    (_, good), (_, bad) = rig.open([1, 2]), rig.open([1, rig.fake.POISON, 3])
    with pytest.raises(RowFailed):
        await tokens_of(bad)
    assert await tokens_of(good) == {0: rig.expected([1, 2])}


@pytest.mark.parametrize("lie", ["step", "tokens", "ragged", "vocabulary"])
async def test_a_worker_that_answers_nonsense_is_given_up(rig: Rig, lie: str) -> None:
    await rig.join()

    def spoil(result: StepResult) -> None:
        rig.workers.spoil = lambda result: None
        if lie == "step":
            result.step += 5
        elif lie == "vocabulary":
            result.tokens = pack([-1])
        else:
            result.tokens += pack([1]) if lie == "tokens" else b"x"

    rig.workers.spoil = spoil
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}
    assert len(rig.workers.workers) == 2


async def test_a_worker_with_nothing_to_offer_is_passed_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    good = rig.workers.limits
    fields = {name: getattr(good, name) for name in WorkerLimits.__slots__}
    rig.workers.limits = SimpleNamespace(**{**fields, "num_blocks": 0})
    rig.workers.join()
    while "failed before it was ready" not in caplog.text:
        await asyncio.sleep(0.001)
    rig.workers.limits = good
    assert await rig.announced.get() == (1, 64)
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}


async def test_what_fails_with_one_worker_goes_on_with_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a worker's scheduler raises is that worker's end, and nobody else's."""
    await rig.join()
    (scheduler,) = rig.engine._fleet.schedulers
    monkeypatch.setattr(scheduler, "complete", lambda result: 1 / 0)
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}
    assert "a worker was given up" in caplog.text
