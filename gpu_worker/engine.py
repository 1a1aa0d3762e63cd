"""The thread that runs the model: takes plans from a queue, one after the other.

event loop       call.submit(plan) ──▶ queue ──▶ engine thread: run the step
                 call.events      ◀── call_soon_threadsafe ◀── result, or what went wrong
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from gpu_worker.errors import PlanError
from gpu_worker.runner import Runner
from gpu_worker.spans import Spans
from proto.worker_pb2 import StepPlan, StepResult

log = logging.getLogger(__name__)


class Engine:
    """Owns the runner and the one thread that touches it."""

    def __init__(self, runner: Runner) -> None:
        """Call within the event loop that will take the results."""
        self.limits = runner.limits
        self.loop = asyncio.get_running_loop()
        self.runner = runner
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread, after what it was given before."""
        self._work.put(work)

    async def stop(self) -> None:
        """End the thread after what it was given before."""
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        self.runner.enter()
        while (work := self._work.get()) is not None:
            work()


class Lending:
    """The worker, lent to one scheduler for one call."""

    def __init__(self, engine: Engine) -> None:
        self.events: asyncio.Queue[StepResult | Exception | None] = asyncio.Queue()
        """Results in the order of plans. None after the last one, an exception if it was cut short."""
        self._engine = engine
        self._spans = Spans()
        self._over = False

    def submit(self, plan: StepPlan) -> None:
        """Run a step; its event will come."""
        self._engine.do(lambda: self._step(plan))

    def finish(self) -> None:
        """No more plans will come."""
        self._engine.do(lambda: self._tell(None))

    def end(self) -> None:
        """Drop plans that have not begun and forget all sequences, before anything of a later call runs."""
        self._over = True
        self._engine.do(self._reset)

    def _step(self, plan: StepPlan) -> None:
        if self._over:
            return
        try:
            self._spans.admit(plan)
            with self._spans.step(plan):
                result = self._engine.runner.execute(plan)
            self._spans.fail(plan, result)
            self._tell(result)
        except Exception as error:  # whatever it is, it ends this call and not the thread
            if not isinstance(error, PlanError):
                log.exception("step %d failed", plan.step)
            self._over = True
            self._tell(error)

    def _reset(self) -> None:
        self._spans.close()
        self._engine.runner.reset()

    def _tell(self, event: StepResult | Exception | None) -> None:
        self._engine.loop.call_soon_threadsafe(self.events.put_nowait, event)
