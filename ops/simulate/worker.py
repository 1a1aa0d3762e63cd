"""One worker under virtual time: it computes the plans of its scheduler one after the other."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ops.simulate import stretch
from ops.simulate.cost import MICROSECOND, Shape, StepCost
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan in flight."""

    step: int
    samples: int
    shape: Shape
    swaps: int = 0
    """Blocks that move to the host or back before it computes."""


@dataclass(frozen=True, slots=True)
class Leap:
    """Steps that are taken at once. Each takes longer than the one before by the same time."""

    first: int
    """Picoseconds that the first step takes."""
    growth: int
    """Picoseconds that each takes more than the one before."""
    steps: int

    def end(self, steps: int) -> int:
        """Picoseconds until `steps` of them are over."""
        return steps * self.first + self.growth * (steps * (steps - 1) // 2)

    def over(self, time: int) -> int:
        """How many are over after `time` picoseconds."""
        low, high = 0, self.steps
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.end(middle) <= time else (low, middle - 1)
        return low


class Worker:
    """A scheduler, and the time that its plans take. All times are picoseconds."""

    def __init__(self, scheduler: Scheduler, cost: StepCost, depth: int, leaps: bool, swap: int = 0) -> None:
        """`depth`: plans in flight at once. `swap`: time that a block takes to the host or back.

        `leaps`: False takes each step by itself, which gives the same times.
        """
        self.scheduler = scheduler
        self.version = 0
        """Raised whenever `wakes` changes."""
        self.admissions = 0
        """Sequences that were given a slot."""
        self._cost = cost
        self._swap = swap
        self._depth = depth
        self._leaps = leaps
        self._flights: deque[Flight] = deque()
        self._begun = 0
        self._leap: Leap | None = None

    @property
    def wakes(self) -> int | None:
        """When something has to be decided next; None if no plan is in flight."""
        if not self._flights:
            return None
        if self._leap:
            return self._begun + self._leap.end(self._leap.steps)
        flight = self._flights[0]
        return self._begun + self._swap * flight.swaps + self._cost.of(flight.shape)

    def pump(self, now: int) -> None:
        """Make as many plans as may be in flight."""
        flights, scheduler = self._flights, self.scheduler
        if not flights:
            self._begun = now
        while len(flights) < self._depth and (plan := scheduler.plan()) is not None:
            swaps = len(plan.swap_out.blocks) + len(plan.swap_in.blocks)
            flights.append(Flight(plan.step, sum(plan.rows.samples), Shape.of(plan), swaps))
            self.admissions += len(plan.new_slots)
        steps = stretch.longest(scheduler) if self._leaps and flights else 0
        if steps > 1:
            shape = flights[0].shape
            self._leap = Leap(self._cost.of(shape), self._cost.context * shape.rows, steps)
        else:
            self._leap = None
        self.version += 1

    def complete(self, now: int) -> Outcome:
        """The oldest step is over."""
        flight = self._flights.popleft()
        self._begun = now
        took = self._cost.of(flight.shape) // MICROSECOND
        return self.scheduler.complete(
            StepResult(flight.step, [stretch.TOKEN] * flight.samples, duration_us=took)
        )

    def leap(self, now: int) -> tuple[Sequence[SequenceGroup], Sequence[int]]:
        """Take the steps of a leap that are over by now: the groups that gained in each, and the ends."""
        leap = self._leap
        steps = leap.over(now - self._begun) if leap else 0
        if leap is None or not steps:
            return (), ()
        groups = [sequence.group for sequence in stretch.advance(self.scheduler, steps)]
        lengths = (leap.first + number * leap.growth for number in range(steps))
        ends = list(accumulate(lengths, initial=self._begun))[1:]
        self._begun = ends[-1]
        self._flights = deque(
            Flight(
                each.step + steps,
                each.samples,
                each.shape._replace(context=each.shape.context + steps * each.shape.rows),
            )
            for each in self._flights
        )
        self._leap = None
        return groups, ends
