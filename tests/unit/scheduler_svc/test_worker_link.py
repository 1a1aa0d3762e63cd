"""When a link plans, and what it makes of a worker that sends nonsense."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from ops.runtime.metrics import Metrics
from proto.worker_pb2 import WorkerEvent, WorkerReady
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.guard import Guard
from scheduler_svc.measures import Measures
from scheduler_svc.worker_link import WorkerLink


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
    link = WorkerLink(Execute(), scheduler, None, Guard(lambda error: None), Measures("tiny", Metrics()))
    link.wake()
    with pytest.raises(WorkerFault, match="ended the call"):
        await asyncio.wait_for(link.run(lambda message: None), 60)
    assert turns == [0, 1, 2]
