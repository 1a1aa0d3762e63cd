"""The thread that runs the model: takes plans from a queue, one after the other.

event loop       call.submit(plan) ──▶ queue ──▶ engine thread: give the step to the device
                 call.events ◀── call_soon_threadsafe ◀── answers: its result, or what went wrong

On a CPU a step that was given is over, and the engine thread answers itself. On a GPU it goes on to the next
plan, and a second thread waits for results: see `pending.py`.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from opentelemetry.trace import INVALID_SPAN, Span, Status, StatusCode

from gpu_worker.errors import DeviceError, PlanError
from gpu_worker.machine.device import is_lost
from gpu_worker.step.pending import Pending
from gpu_worker.step.runner import Runner
from gpu_worker.step.spans import Spans
from gpu_worker.watchdog import Watchdog
from proto.worker_pb2 import StepPlan, StepResult

log = logging.getLogger(__name__)

Work = Callable[[], None]

PATIENCE = 3.0
"""Seconds that each thread may take to end: more than a step; of both less than the launcher waits."""


class Engine:
    """Owns the runner and the one thread that touches it."""

    def __init__(self, runner: Runner, overlap: bool | None = None) -> None:
        """Call within the event loop that will take the results.

        `overlap`: results are waited for in a thread of their own; None: if the device is a GPU.
        """
        self.limits = runner.limits
        self.loop = asyncio.get_running_loop()
        self.runner = runner
        self.lost: asyncio.Future[None] = self.loop.create_future()
        """Ends with `DeviceError` if the device does nothing more: whoever serves must give way to others."""
        self.watchdog = Watchdog()
        """Knows whether the device does something."""
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[Work | None] | None = None
        self._threads = [threading.Thread(target=self._run, name="engine", daemon=True)]
        if overlap or (overlap is None and runner.device.type == "cuda"):
            self._answers = SimpleQueue()
            self._threads.append(threading.Thread(target=_work_off, args=(self._answers,), daemon=True))
        for thread in self._threads:
            thread.start()

    def do(self, work: Work) -> None:
        """Run `work` in the engine's thread, after what it was given before."""
        self._work.put(work)

    def answer(self, work: Work) -> None:
        """Run what waits for results, after what was to be answered before. For the engine's thread."""
        if self._answers is None:
            work()
        else:
            self._answers.put(work)

    def settle(self, step: Pending) -> None:
        """Have the runner settle a step whose result is known, in the engine's thread."""
        if self._answers is None:
            self.runner.settle(step)
        elif step.failed:
            self.do(partial(self.runner.settle, step))

    def check_device(self, error: Exception) -> None:
        """After an error in a step, in whichever thread: find out whether there can be more steps."""
        if is_lost(self.runner.device):
            lost = DeviceError(f"the GPU is lost to this process: {error}")
            self.loop.call_soon_threadsafe(self._lose, lost)

    async def stop(self) -> None:
        """End the threads after what they were given before; leave those that wait for a device in vain."""
        self._work.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, PATIENCE)

    def _lose(self, error: DeviceError) -> None:
        if not self.lost.done():
            self.lost.set_exception(error)

    def _run(self) -> None:
        self.runner.enter()
        _work_off(self._work)
        if self._answers is not None:
            self._answers.put(None)


def _work_off(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        work()


class Session:
    """One Execute call: the worker belongs to one scheduler until it ends."""

    def __init__(self, engine: Engine) -> None:
        self.events: asyncio.Queue[StepResult | Exception | None] = asyncio.Queue()
        """Results in the order of plans, then None, or an exception if the session was cut short."""
        self._engine = engine
        self._spans = Spans()
        self._over = False

    def submit(self, plan: StepPlan) -> None:
        """Run a step; its event will come."""
        self._engine.do(lambda: self._begin(plan))

    def finish(self) -> None:
        """No more plans will come."""
        self._engine.do(lambda: self._engine.answer(lambda: self._tell(None)))

    def end(self) -> None:
        """Drop plans that have not begun and forget all sequences, before anything of a later call runs."""
        self._over = True
        self._engine.do(self._reset)

    def _begin(self, plan: StepPlan) -> None:
        if self._over:
            return
        self._engine.watchdog.begun(plan)
        span: Span = INVALID_SPAN
        try:
            self._spans.admit(plan)
            span = self._spans.step(plan)
            step = self._engine.runner.begin(plan)
        except Exception as error:
            self._over = True
            self._engine.answer(partial(self._fail, plan, span, error))
        else:
            self._engine.answer(lambda: self._answer(plan, span, step))

    def _answer(self, plan: StepPlan, span: Span, step: Pending) -> None:
        try:
            result = step.result()
        except Exception as error:  # the device's, which shows when it is waited for
            self._over = True
            self._fail(plan, span, error)
            return
        self._engine.watchdog.answered()
        self._engine.settle(step)
        span.end()
        self._spans.fail(plan, result)
        self._tell(result)

    def _fail(self, plan: StepPlan, span: Span, error: Exception) -> None:
        """Whatever it is, it ends this call and not the thread; with ranks that are out of step now, all.

        What the device does not survive ends the process: all later calls would end so, too, and cost their
        requests an attempt each.
        """
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
        if not isinstance(error, PlanError):
            if self._engine.runner.followers is not None:
                self._engine.runner.followers.abandon(error)
            log.error("step %d failed", plan.step, exc_info=error)
            self._engine.check_device(error)
        self._engine.watchdog.answered()
        self._tell(error)

    def _reset(self) -> None:
        self._spans.close()
        self._engine.runner.reset()

    def _tell(self, event: StepResult | Exception | None) -> None:
        self._engine.loop.call_soon_threadsafe(self.events.put_nowait, event)
