"""Whether steps come near to the least that they can take on this machine; if not, which part is slow.

every 16th step        beside its floor, which takes some microseconds to compute
256 steps              slower than 3 times their floors, on average? then, at most every ten minutes,
every 16th of 128      with their parts timed, and one line says which part it is
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_worker.machine.rates import Rates
from gpu_worker.models.work import Work
from gpu_worker.pace.parts import ATTENTION, OTHER, PRODUCTS, SAMPLING, Parts
from gpu_worker.step.pending import Pending
from gpu_worker.step.plan import Plan
from proto.worker_pb2 import StepPlan

SLOW = 3.0
"""Times the floor from which a step is slow."""
HOST = 0.002
"""Seconds that the Python of a step may take. A floor knows nothing of it; a small model's steps are little
else."""
EVERY = 16
"""Steps of which one is compared with its floor."""
WINDOW = 16
"""Compared steps that are judged together."""
TIMED = 8
"""Compared steps whose parts are timed."""
REST = 600.0
"""Seconds between two lines."""


@dataclass(frozen=True, slots=True)
class Slow:
    """Steps that are slow: means over the steps whose parts were timed, in seconds."""

    step: float
    """Time of a step."""
    parts: Mapping[str, float]
    """Time of each part."""
    floors: Mapping[str, float]
    """The least time of each part. 0: it is not known. They may add up to more than `floor`."""
    floor: float
    """The least time of a step."""
    computing: float
    """Share of the time in which the thread that computes had a core."""

    @property
    def times(self) -> float:
        """Multiple of the floor."""
        return self.step / self.floor

    @property
    def part(self) -> str:
        """The part that is furthest beyond its least time."""
        return max(self.parts, key=lambda part: self.parts[part] - self.floors[part])


class Pace:
    """Compares steps with their floors. All calls are made by the thread that computes."""

    def __init__(
        self,
        work_of: Callable[[Plan], Work | None],
        rates: Rates,
        say: Callable[[Slow | None], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`work_of`: the least that a step must do; None: not known. `say`: is told that steps are slow, and
        with None that they no longer are. `now`: a clock, in seconds."""
        self._work_of, self._rates, self._say, self._now = work_of, rates, say, now
        self._steps = 0
        self._is_slow = False
        self._silent_until = float("-inf")
        self._timing = False
        self._parts = Parts()
        self._begin_window()

    def run(self, begin: Callable[[StepPlan], Pending], plan: StepPlan) -> Pending:
        """`begin(plan)`. If the step before this one has ended, `ended` follows it."""
        self._steps += 1
        if not self._timing or self._steps % EVERY:
            return begin(plan)
        with self._parts:
            return begin(plan)

    def ended(self, plan: Plan, microseconds: int) -> None:
        """The step that was begun last has taken this long."""
        if self._steps % EVERY:
            return
        work = self._work_of(plan)
        if work is None:
            return
        self._count += 1
        self._seconds += microseconds / 1e6
        self._floor += work.floor(self._rates)
        if self._timing:
            self._floors[PRODUCTS] += work.products_floor(self._rates)
            self._floors[ATTENTION] += work.attention_floor(self._rates)
        if self._count == (TIMED if self._timing else WINDOW):
            self._judge()
            self._begin_window()

    def _begin_window(self) -> None:
        self._count, self._seconds, self._floor = 0, 0.0, 0.0
        self._floors = {PRODUCTS: 0.0, ATTENTION: 0.0, SAMPLING: 0.0, OTHER: 0.0}
        self._parts.clear()

    def _judge(self) -> None:
        is_slow = self._seconds > SLOW * (self._floor + self._count * HOST)
        if self._timing:
            self._timing = False
            if is_slow:
                self._is_slow = True
                self._silent_until = self._now() + REST
                self._say(self._slow())
        elif is_slow:
            self._timing = self._now() >= self._silent_until
        elif self._is_slow:
            self._is_slow = False
            self._say(None)

    def _slow(self) -> Slow:
        count = self._count
        return Slow(
            self._seconds / count,
            {part: seconds / count for part, seconds in self._parts.by_part.items()},
            {part: seconds / count for part, seconds in self._floors.items()} | {OTHER: HOST},
            self._floor / count,
            self._parts.computing / self._parts.whole,
        )
