"""One worker that serves this scheduler: its Execute call, and the core's scheduler that plans for it."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from proto.worker_pb2 import StepResult
from scheduler_svc.core.errors import IntegrityError, WorkerFault
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.plan_depth import PlanDepth
from scheduler_svc.wire import plan_to

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""A scheduler that has been idle for this long checks its own consistency, while nobody waits for it."""


class WorkerLink:
    """Keeps plans in flight as long as there is work.

    Two tasks: one plans whenever requests or results have come, the other takes the results. Because planning
    has a task of its own, everything that happens in one turn of the event loop goes into one plan.
    """

    def __init__(self, call: Any, scheduler: Scheduler, depth: int | None) -> None:
        """`call`: an Execute call that has answered `ready`. `depth`: plans in flight; None: measured."""
        self.scheduler = scheduler
        self._call = call
        self._depth = PlanDepth(depth)
        self._changed = asyncio.Event()
        self._check: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """A request or a result has come: there may be something to plan."""
        self._changed.set()

    async def run(self, on_result: Callable[[StepResult], None]) -> None:
        """Work until the call ends. Raises `grpc.aio.AioRpcError` or `WorkerFault` then."""
        planning = asyncio.ensure_future(self._plan())
        receiving = asyncio.ensure_future(self._receive(on_result))
        try:
            done, _ = await asyncio.wait((receiving, planning), return_when=asyncio.FIRST_COMPLETED)
            if receiving not in done:
                planning.result()
            await receiving
        finally:
            if self._check is not None:
                self._check.cancel()
            planning.cancel()
            receiving.cancel()
            self._call.cancel()
            await asyncio.gather(planning, receiving, return_exceptions=True)

    async def _plan(self) -> None:
        scheduler = self.scheduler
        while True:
            await self._changed.wait()
            self._changed.clear()
            while scheduler.in_flight < self._depth.plans and (plan := scheduler.plan()) is not None:
                self._depth.plan_sent(scheduler.in_flight, time.monotonic())
                try:
                    await self._call.write(plan_to(plan))
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is over; the receiving task learns why

    async def _receive(self, on_result: Callable[[StepResult], None]) -> None:
        while True:
            event = await self._call.read()
            if event is grpc.aio.EOF:
                raise WorkerFault("the worker ended the call")
            if event.WhichOneof("event") != "result":
                raise WorkerFault("the worker sent an event that is no result")
            self._depth.result_came(event.result.duration_us / 1e6, time.monotonic())
            on_result(event.result)
            self.wake()
            if self.scheduler.idle:
                self._check_soon()

    def _check_soon(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._check_integrity)

    def _check_integrity(self) -> None:
        if self.scheduler.idle:
            try:
                self.scheduler.check_integrity()
            except IntegrityError:
                log.exception("the scheduler's state is inconsistent")
