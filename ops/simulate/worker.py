"""A worker in virtual time, which computes the plans of its scheduler one after the other."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ops.simulate import stretch
from ops.simulate.cost import MICROSECOND, Shape, StepCost
from scheduler_svc.core.flight import REJECTED
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan in flight."""

    step: int
    """Number of the plan."""
    samples: Sequence[int]
    """Tokens that each row of the step samples: one more than it has drafts."""
    shape: Shape
    """What the step computes."""
    swaps: int = 0
    """Blocks that are moved to the host or back before the step computes."""


@dataclass(frozen=True, slots=True)
class Leap:
    """Steps that are simulated at once. Each takes longer than the step before by the same time."""

    first: int
    """Picoseconds of the first step."""
    growth: int
    """Picoseconds by which each step is longer than the step before."""
    steps: int
    """Number of steps."""

    def end(self, steps: int) -> int:
        """Picoseconds until the first `steps` steps are over."""
        return steps * self.first + self.growth * (steps * (steps - 1) // 2)

    def over(self, time: int) -> int:
        """Number of steps that are over after `time` picoseconds."""
        low, high = 0, self.steps
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.end(middle) <= time else (low, middle - 1)
        return low


class Worker:
    """A scheduler and the time that its plans take. All times are picoseconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        cost: StepCost,
        depth: int,
        leaps: bool,
        swap: int = 0,
        holds: Callable[[], bool] = bool,
    ) -> None:
        """`depth`: plans in flight at once. `swap`: time to copy one block to the host, or back.

        `leaps`: whether equal steps are simulated at once. The times are the same either way. `holds`: draws
        whether a draft holds.
        """
        self.scheduler = scheduler
        self.version = 0
        """A number that grows whenever `wakes` changes."""
        self.admissions = 0
        """Number of times that a sequence was given a slot."""
        self._cost = cost
        self._swap, self._holds = swap, holds
        self._depth = depth
        self._leaps = leaps
        self._flights: deque[Flight] = deque()
        self._begun = -1
        """When the step under way begins, or the last one ended."""
        self._leap: Leap | None = None

    @property
    def wakes(self) -> int | None:
        """Time of the worker's next event; None if no plan is in flight."""
        if not self._flights:
            return None
        if self._leap:
            return self._begun + self._leap.end(self._leap.steps)
        flight = self._flights[0]
        return self._begun + self._swap * flight.swaps + self._cost.of(flight.shape)

    def pump(self, now: int) -> None:
        """Make plans until `depth` plans are in flight, or the scheduler has none to make."""
        flights, scheduler = self._flights, self.scheduler
        if not flights:
            self._begun = now if now == self._begun else now + self._cost.idle
        while len(flights) < self._depth and (plan := scheduler.plan()) is not None:
            swaps = len(plan.swap_out.blocks) + len(plan.swap_in.blocks)
            flights.append(Flight(plan.step, plan.rows.samples, Shape.of(plan), swaps))
            self.admissions += len(plan.new_slots)
        steps = stretch.longest(scheduler) if self._leaps and flights else 0
        if steps > 1:
            shape = flights[0].shape
            self._leap = Leap(self._cost.of(shape), self._cost.context * shape.rows, steps)
        else:
            self._leap = None
        self.version += 1

    def complete(self, now: int) -> Outcome:
        """End the oldest step. Returns what the scheduler makes of its result."""
        flight = self._flights.popleft()
        self._begun = now
        took = self._cost.of(flight.shape) // MICROSECOND
        tokens = [stretch.TOKEN] * sum(flight.samples)
        if max(flight.samples, default=0) > 1:
            tokens = [token for samples in flight.samples for token in self._sampled(samples)]
        return self.scheduler.complete(StepResult(flight.step, tokens, duration_us=took))

    def _sampled(self, samples: int) -> list[int]:
        """What a row samples: a token for each draft that holds, one of its own, and nothing for the rest."""
        held = 1
        while held < samples and self._holds():
            held += 1
        return ([stretch.TOKEN] * held + [REJECTED] * (samples - held))[:samples]

    def leap(self, now: int) -> tuple[Sequence[SequenceGroup], Sequence[int]]:
        """Take the steps of the leap that are over by now.

        Returns the groups that gained a token in each of these steps, and the steps' ends.
        """
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
