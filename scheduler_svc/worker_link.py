"""A worker that is lent to this scheduler: its Execute call, and the scheduler that plans for it."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from proto.worker_pb2 import StepResult
from scheduler_svc.ahead import Ahead
from scheduler_svc.core.errors import IntegrityError, WorkerFault
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.wire import plan_to

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""A scheduler that has been idle for this long has its books checked, while nobody waits for it."""


class WorkerLink:
    """Keeps plans under way, as long as there is work.

    Two tasks: one plans whenever requests or results have come, the other takes the results. Planning
    in a task of its own gathers all that happens in one turn of the event loop into one plan.
    """

    def __init__(self, call: Any, scheduler: Scheduler, depth: int | None) -> None:
        """`call`: an Execute call that has answered with `ready`. `depth`: plans under way, see `Ahead`."""
        self.scheduler = scheduler
        self._call = call
        self._ahead = Ahead(depth)
        self._news = asyncio.Event()
        self._check: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Something has come that may have to be planned."""
        self._news.set()

    async def run(self, on_result: Callable[[StepResult], None]) -> None:
        """Work until the call ends, which raises: `grpc.aio.AioRpcError` or `WorkerFault` as a rule."""
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
            await self._news.wait()
            self._news.clear()
            while scheduler.in_flight < self._ahead.plans and (plan := scheduler.plan()) is not None:
                self._ahead.sent(scheduler.in_flight, time.monotonic())
                try:
                    await self._call.write(plan_to(plan))
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is over; why, the other task is told

    async def _receive(self, on_result: Callable[[StepResult], None]) -> None:
        while True:
            event = await self._call.read()
            if event is grpc.aio.EOF:
                raise WorkerFault("the worker has ended the call")
            if event.WhichOneof("event") != "result":
                raise WorkerFault("the worker sent something that is not a result")
            self._ahead.came(event.result.duration_us / 1e6, time.monotonic())
            on_result(event.result)
            self.wake()
            if self.scheduler.idle:
                self._check_soon()

    def _check_soon(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._check_books)

    def _check_books(self) -> None:
        if self.scheduler.idle:
            try:
                self.scheduler.check_integrity()
            except IntegrityError:
                log.exception("the scheduler's books do not balance")
