"""When a link plans, and what it makes of a worker that sends nonsense."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from ops.runtime.metrics import Metrics
from proto import arrays
from proto.sampling import greedy
from proto.worker_pb2 import StepPlan, StepResult, WorkerEvent, WorkerReady
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.guard import Guard
from scheduler_svc.measures import Measures
from scheduler_svc.wire import result_from
from scheduler_svc.worker_link import REST_SECONDS, WorkerLink
from tests.support.virtual import virtual


def unreadable() -> Any:
    raise DecodeError("Error parsing message")


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (unreadable, "cannot be read"),
        (lambda: grpc.aio.EOF, "ended the call"),
        (lambda: WorkerEvent(ready=WorkerReady()), "may not send"),
    ],
)
async def test_what_is_no_result_is_the_worker_s_fault(
    fake: SimpleNamespace, read: Callable[[], Any], why: str
) -> None:
    cancelled: list[bool] = []

    class Execute:
        async def read(self) -> Any:
            return read()

        def cancel(self) -> None:
            cancelled.append(True)

    failures: list[BaseException] = []
    link = WorkerLink(
        Execute(), Scheduler(fake.limits(), 16), None, Guard(failures.append), Measures("tiny", Metrics())
    )
    with pytest.raises(WorkerFault, match=why):
        await asyncio.wait_for(link.run(lambda message: None), 60)
    assert cancelled == [True]
    assert failures == []


class Worker:
    """Answers plans at once, each with the same token in every row that samples."""

    wake: Callable[[], None]
    """Of its link."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self._events: asyncio.Queue[WorkerEvent] = asyncio.Queue()

    async def write(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        tokens = arrays.pack([1] * sum(plan.rows.samples))
        self._events.put_nowait(WorkerEvent(result=StepResult(step=plan.step, tokens=tokens)))

    async def read(self) -> WorkerEvent:
        return await self._events.get()

    def cancel(self) -> None: ...


@contextlib.asynccontextmanager
async def linked(fake: SimpleNamespace, worker: Any) -> AsyncIterator[Callable[[int], SequenceGroup]]:
    """A link to a worker; what takes on a request for so many tokens."""
    fleet = Fleet(16)
    scheduler, _ = fleet.add_worker(fake.limits())
    guard, measures = Guard(lambda error: None), Measures("tiny", Metrics())
    link = WorkerLink(worker, scheduler, None, guard, measures)
    worker.wake = link.wake

    def on_result(message: StepResult) -> None:
        fleet.settle(scheduler, scheduler.complete(result_from(message)[0]))

    def ask(tokens: int) -> SequenceGroup:
        request = fake.request([1, 2, 3], seed=greedy(), max_tokens=tokens)
        group, _ = fleet.accept(request)
        link.wake()
        return group

    running = asyncio.ensure_future(link.run(on_result))
    yield ask
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@virtual
async def test_the_worker_hears_of_free_slots_with_the_next_request_or_after_a_rest(
    fake: SimpleNamespace,
) -> None:
    worker = Worker()
    async with linked(fake, worker) as ask:
        for _ in range(3):
            group = ask(1)
            while group.unfinished:
                await asyncio.sleep(0)
            await asyncio.sleep(REST_SECONDS / 2)
        zero = arrays.pack([0])
        assert [plan.freed_slots for plan in worker.plans] == [b"", zero, zero]
        await asyncio.sleep(100 * REST_SECONDS)
        assert [(plan.freed_slots, plan.rows.slots) for plan in worker.plans[3:]] == [(zero, b"")]


async def test_a_worker_hears_of_free_slots_while_others_work(fake: SimpleNamespace) -> None:
    """What another worker does wakes the links of all."""
    worker = Worker()
    async with linked(fake, worker) as ask:
        group = ask(1)
        while group.unfinished:
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while len(worker.plans) < 2:
                await asyncio.sleep(REST_SECONDS / 10)
                worker.wake()
        assert worker.plans[1].freed_slots == arrays.pack([0])


async def test_what_an_idle_worker_waits_for_is_sent_before_more_is_planned(fake: SimpleNamespace) -> None:
    seen: list[tuple[str, int]] = []

    class Slow(Worker):
        async def write(self, plan: StepPlan) -> None:
            seen.append(("written", plan.step))
            loop.call_soon(seen.append, ("sent", plan.step))  # as the outbox, which this wakes

    loop = asyncio.get_running_loop()
    async with linked(fake, Slow()) as ask:
        ask(3)
        for _ in range(10):
            await asyncio.sleep(0)
    assert seen[:3] == [("written", 1), ("sent", 1), ("written", 2)]


async def test_it_plans_again_where_a_plan_has_not_looked_at_all_that_wait(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, turns, planned = Scheduler(fake.limits(), 16), list[int](), asyncio.Event()

    def plan() -> None:
        turns.append(len(turns))
        scheduler.plan_again = len(turns) < 3
        if not scheduler.plan_again:
            planned.set()

    class Execute:
        async def read(self) -> Any:
            await planned.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            return grpc.aio.EOF

        def cancel(self) -> None: ...

    monkeypatch.setattr(scheduler, "plan", plan)
    monkeypatch.setattr(Scheduler, "idle", False)
    link = WorkerLink(Execute(), scheduler, None, Guard(lambda error: None), Measures("tiny", Metrics()))
    link.wake()
    with pytest.raises(WorkerFault, match="ended the call"):
        await asyncio.wait_for(link.run(lambda message: None), 60)
    assert turns == [0, 1, 2]
