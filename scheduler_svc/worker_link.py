"""One worker that serves this scheduler: its Execute call, and the core's scheduler that plans for it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from proto.worker_pb2 import StepPlan, StepResult
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.guard import Guard
from scheduler_svc.measures import Measures
from scheduler_svc.plan_depth import PlanDepth
from scheduler_svc.progress import Progress
from scheduler_svc.recording.tape import RecordedScheduler
from scheduler_svc.step_log import StepLog
from scheduler_svc.wire import plan_to

IDLE_SECONDS = 1.0
"""A scheduler that has been idle for this long checks its own consistency, while nobody waits for it."""
REST_SECONDS = 0.05
"""After this time without work the worker is told which slots are free. The next plan tells it, too: with one
short request after the other no plan of its own is made for it, at the moment when answers are sent."""


class WorkerLink:
    """Keeps plans in flight as long as there is work.

    Two tasks: one plans whenever requests or results have come, the other takes the results. Because planning
    has a task of its own, everything that happens in one turn of the event loop goes into one plan.
    """

    def __init__(
        self, call: Any, scheduler: Scheduler, depth: int | None, guard: Guard, measures: Measures
    ) -> None:
        """`call`: an Execute call that has answered `ready`. `depth`: plans in flight; None: measured."""
        self.scheduler = scheduler
        self.step_logs: list[StepLog] = []
        """Of those who look at the worker now."""
        self._tape = scheduler.tape if isinstance(scheduler, RecordedScheduler) else None
        self._call, self._guard, self._measures = call, guard, measures
        self._depth = PlanDepth(depth)
        self.progress = Progress()
        self._changed = asyncio.Event()
        self._check: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._rests = False
        """There was no work for `REST_SECONDS`."""

    def wake(self) -> None:
        """A request or a result has come: there may be something to plan."""
        self._changed.set()

    async def run(self, on_result: Callable[[StepResult], None]) -> None:
        """Work until the call ends. Raises `grpc.aio.AioRpcError` or `WorkerFault` then, or what the core has
        raised."""
        planning = asyncio.ensure_future(self._plan())
        receiving = asyncio.ensure_future(self._receive(on_result))
        try:
            done, _ = await asyncio.wait((receiving, planning), return_when=asyncio.FIRST_COMPLETED)
            if receiving not in done:
                planning.result()
            await receiving
        finally:
            for timer in (self._check, self._rest):
                if timer is not None:
                    timer.cancel()
            planning.cancel()
            receiving.cancel()
            self._call.cancel()
            await asyncio.gather(planning, receiving, return_exceptions=True)

    async def _plan(self) -> None:
        scheduler = self.scheduler
        while True:
            await self._changed.wait()
            self._changed.clear()
            while (message := self._next_plan()) is not None:
                self._depth.plan_sent(scheduler.in_flight, time.monotonic())
                try:
                    await self._call.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the call is over; the receiving task learns why
                if scheduler.in_flight == 1:  # the worker waits for it, and not for the one that is made next
                    await asyncio.sleep(0)

    def _next_plan(self) -> StepPlan | None:
        """The next plan for the worker; None if enough are in flight or there is nothing to do."""
        if self.scheduler.in_flight >= self._depth.plans:
            return None
        if self.scheduler.idle and not self._rests:
            if self._rest is None:
                self._rest = asyncio.get_running_loop().call_later(REST_SECONDS, self._come_to_rest)
            return None
        self._rests = False
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        with self._guard:
            plan = self.scheduler.plan()
            if plan is None:
                if self.scheduler.plan_again:  # after what else there is to do in this process
                    asyncio.get_running_loop().call_soon(self.wake)
                return None
            self._measures.planned(plan)
            for log in self.step_logs:
                log.planned(plan)
            message = plan_to(plan)
            if self._tape is not None:
                self._tape.planned(message)
            return message

    async def _receive(self, on_result: Callable[[StepResult], None]) -> None:
        while True:
            try:
                event = await self._call.read()
            except DecodeError as error:
                raise WorkerFault("the worker sent what cannot be read") from error
            if event is grpc.aio.EOF:
                raise WorkerFault("the worker ended the call")
            kind = event.WhichOneof("event")
            if kind in ("compiled", "seen"):
                self.progress.said()
                with self._guard:
                    if kind == "compiled":
                        self.scheduler.compiled(event.compiled)
                    else:
                        self.scheduler.seen(event.seen)
                self.wake()
                continue
            if kind != "result":
                raise WorkerFault("the worker sent an event that it may not send")
            if self._tape is not None:
                self._tape.came(event.result)
            self.progress.said(event.result.duration_us / 1e6)
            self._measures.computed(event.result)
            self._depth.result_came(event.result.duration_us / 1e6, time.monotonic())
            on_result(event.result)
            for log in self.step_logs:
                log.computed(event.result)
            self.wake()
            if self.scheduler.idle:
                self._check_soon()

    def _come_to_rest(self) -> None:
        self._rest, self._rests = None, True
        self.wake()

    def _check_soon(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._check_integrity)

    def _check_integrity(self) -> None:
        if self.scheduler.idle:
            with contextlib.suppress(Exception), self._guard:  # nobody waits here for what it raises
                self.scheduler.check_integrity()
