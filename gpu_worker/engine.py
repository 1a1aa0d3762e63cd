"""The engine thread: runs the model, plan after plan, from a queue.

event loop       session.submit(plan) ──▶ queue ──▶ engine thread: gives the step to the device
                 session.events ◀── call_soon_threadsafe ◀── answers: the step's result, or an error

On a CPU a step is over when the engine thread has given it to the device, so this thread answers, too. On a
GPU the engine thread goes on to the next plan, and a second thread waits for results: see `pending.py`.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from gpu_worker.errors import DeviceError, PlanError, StepError
from gpu_worker.machine.device import is_lost
from gpu_worker.pace.pace import Pace
from gpu_worker.step.pending import Pending
from gpu_worker.step.runner import Runner
from gpu_worker.step.spans import Spans, TracedStep
from gpu_worker.watchdog import Watchdog
from proto.worker_pb2 import StepPlan, StepResult

log = logging.getLogger(__name__)

Work = Callable[[], None]

MAX_UNANSWERED = 64
"""Plans that may wait for their results. A scheduler has a few under way."""

PATIENCE = 3.0
"""Seconds that each thread may take to end: longer than a step, less than half the launcher's wait."""


class Engine:
    """Owns the runner, and the one thread that calls it."""

    def __init__(self, runner: Runner, overlap: bool | None = None, pace: Pace | None = None) -> None:
        """To be created within the event loop that takes the results.

        `overlap`: whether a second thread waits for results. None: on a GPU it does. `pace`: compares steps
        with their floors, where one thread begins and ends them. None: they are not compared.
        """
        self.limits = runner.limits
        self.loop = asyncio.get_running_loop()
        self.runner = runner
        self.lost: asyncio.Future[None] = self.loop.create_future()
        """Raises `DeviceError` once the device has failed for good, or what has ended one of the threads.
        Then this process must end."""
        self.watchdog = Watchdog()
        """Finds out if the device hangs."""
        self._steps_seen = -1
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._answers: SimpleQueue[Work | None] | None = None
        self._threads = [threading.Thread(target=self._own, args=(self._run,), name="engine", daemon=True)]
        if overlap or (overlap is None and runner.device.type == "cuda"):
            self._answers = SimpleQueue()
            answer = partial(_run_queue, self._answers)
            self._threads.append(threading.Thread(target=self._own, args=(answer,), daemon=True))
        self._pace = pace if self._answers is None else None
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work) -> None:
        """Run `work` in the engine thread, after all work that was submitted before."""
        self._work.put(work)

    def answer(self, work: Work) -> None:
        """Run `work`, which may wait for the device, after all earlier answers.

        To be called by the engine thread. With overlap the second thread runs `work`.
        """
        if self._answers is None:
            work()
        else:
            self._answers.put(work)

    def begin(self, plan: StepPlan) -> Pending:
        """Let the runner begin a step, in the engine thread."""
        return self.runner.begin(plan) if self._pace is None else self._pace.run(self.runner.begin, plan)

    def ended(self, step: Pending, result: StepResult) -> None:
        """The step that was begun last has ended."""
        if self._pace is not None:
            self._pace.ended(step.plan, result.duration_us)

    def settle(self, step: Pending) -> None:
        """Let the runner settle a step whose result is known, in the engine thread."""
        if self._answers is None:
            self.runner.settle(step)
        elif step.failed:
            self.submit(partial(self.runner.settle, step))

    def loses_device(self, error: Exception) -> bool:
        """Whether the device no longer works after an error in a step, so that this process must end.

        Any thread may call this.
        """
        if not is_lost(self.runner.device):
            return False
        lost = DeviceError(f"the GPU is lost to this process: {error}")
        self.loop.call_soon_threadsafe(self._lose, lost)
        return True

    def rests(self) -> bool:
        """Whether there was no step since this was called before."""
        before, self._steps_seen = self._steps_seen, self.watchdog.steps
        return self.lost.done() or (before == self._steps_seen and not self.watchdog.waiting)

    async def stop(self) -> None:
        """End the threads once they have done their work.

        A thread that takes longer than `PATIENCE` is left behind: it waits for a device that hangs.
        """
        self._work.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, PATIENCE)

    def _own(self, run: Work) -> None:
        """A thread's work. Once it has ended with an error, nobody runs plans: this process must end."""
        try:
            run()
        except BaseException as error:
            self.loop.call_soon_threadsafe(self._lose, error)

    def _lose(self, error: BaseException) -> None:
        if not self.lost.done():
            self.lost.set_exception(error)

    def _run(self) -> None:
        self.runner.enter()
        _run_queue(self._work)
        if self._answers is not None:
            self._answers.put(None)


def _run_queue(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        work()


@dataclass(frozen=True, slots=True)
class Sighted:
    """Images have been seen."""

    number: int
    """`NewSlot.sight`."""


class Session:
    """One Execute call. The worker serves one scheduler until the session ends."""

    def __init__(self, engine: Engine) -> None:
        self.events: asyncio.Queue[StepResult | int | Sighted | Exception | None] = asyncio.Queue()
        """Results in the order of plans, and between them numbers of grammars that have been compiled, and of
        images that have been seen. Then None, or the exception that ended the session."""
        self._engine = engine
        self._spans = Spans()
        self._over = False
        self._unanswered = 0
        engine.submit(self._open)

    def submit(self, plan: StepPlan) -> None:
        """Run a step. Its result comes through `events`. Raises `PlanError` for too many without a result."""
        if self._unanswered >= MAX_UNANSWERED:
            raise PlanError(f"more than {MAX_UNANSWERED} plans under way")
        self._unanswered += 1
        self._engine.submit(lambda: self._begin(plan))

    def refuse(self, error: Exception) -> None:
        """End `events` with an error once all plans are answered. No plan may follow."""
        self._engine.submit(lambda: self._engine.answer(lambda: self._emit(error)))

    def finish(self) -> None:
        """End `events` with None once all plans are answered. No plan may follow."""
        self._engine.submit(lambda: self._engine.answer(lambda: self._emit(None)))

    def end(self) -> None:
        """Drop plans that have not begun and forget all sequences, before a later session's first plan."""
        self._over = True
        self._engine.submit(self._reset)

    def _open(self) -> None:
        self._engine.runner.announce_grammars(self._announce)
        self._engine.runner.announce_sights(lambda sight: self._announce(Sighted(sight)))

    def _announce(self, event: "int | Sighted") -> None:
        """A grammar has been compiled, or images have been seen. Any thread may call this, even once the
        event loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._engine.loop.call_soon_threadsafe(self.events.put_nowait, event)

    def _begin(self, plan: StepPlan) -> None:
        if self._over:
            return
        self._engine.watchdog.begun(plan)
        traced: TracedStep | None = None
        try:
            traced = self._spans.begin(plan)
            step = self._engine.begin(plan)
        except Exception as error:
            self._over = True
            self._engine.answer(partial(self._fail, plan, traced, error))
        else:
            self._engine.answer(lambda: self._answer(plan, traced, step))

    def _answer(self, plan: StepPlan, traced: TracedStep | None, step: Pending) -> None:
        try:
            result = step.result()
        except Exception as error:  # a device reports its errors when it is waited for
            self._over = True
            self._fail(plan, traced, error)
            return
        self._engine.watchdog.answered()
        self._engine.ended(step, result)
        self._engine.settle(step)
        self._spans.end(traced, result)
        self._emit(result)

    def _fail(self, plan: StepPlan, traced: TracedStep | None, error: Exception) -> None:
        """End the call with an error. The thread goes on.

        With several ranks an error that not all of them raise ends the whole worker, because their batches
        may differ now. An error after which the device no longer works ends the process, and the call says
        nothing more: the step did not raise for a reason of its requests.
        """
        self._spans.fail(traced, error)
        lost = False
        if not isinstance(error, PlanError):
            if self._engine.runner.followers is not None:
                self._engine.runner.followers.failed(error)
            log.error("step %d failed", plan.step, exc_info=error)
            lost = self._engine.loses_device(error)
        self._engine.watchdog.answered()
        if not lost:
            self._emit(error if isinstance(error, PlanError) else StepError(plan.step, error))

    def _reset(self) -> None:
        self._spans.close()
        self._engine.runner.reset()

    def _emit(self, event: StepResult | Exception | None) -> None:
        self._engine.loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: StepResult | Exception | None) -> None:
        self._unanswered -= 1
        self.events.put_nowait(event)
