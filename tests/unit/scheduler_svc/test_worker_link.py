"""What a link makes of a worker that sends nonsense."""

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
