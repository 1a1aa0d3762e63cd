"""How many plans to have under way: so many that the worker never waits for the next one.

    step     ──▶ worker: step 1 ─ ▶ ─ step 2 ─ ▶ ─ step 3
    way      └ plan 1 there ┘     └ result 1 here, plan 3 there ┘

Results and plans are on their way while the worker computes the plans between them. For a large model one
such plan is enough. A small one's step on a GPU takes less time than the way.
"""

import math

LEAST, MOST = 2, 4
NEWEST = 0.2
"""Weight of the last measurement."""
SLOW = 1.5
"""What a slow way takes, of a usual one."""


class Ahead:
    """Watches plans and results; times are in seconds."""

    def __init__(self, fixed: int | None = None) -> None:
        """`fixed`: so many plans, whatever is seen."""
        self._fixed = fixed
        self._way = self._step = 0.0
        self._sent: float | None = None
        """When a plan went to a worker that had none, until its result has come."""

    @property
    def plans(self) -> int:
        """Plans to have under way."""
        if self._fixed is not None:
            return self._fixed
        if not self._step:
            return LEAST
        return min(MOST, max(LEAST, 1 + math.ceil(SLOW * self._way / self._step)))

    def sent(self, in_flight: int, now: float) -> None:
        """A plan is on its way, the last of `in_flight`."""
        if in_flight == 1:
            self._sent = now

    def came(self, step: float, now: float) -> None:
        """A result is here, whose step took `step`."""
        self._step = _smoothed(self._step, step)
        if self._sent is not None:
            self._way = _smoothed(self._way, now - self._sent - step)
            self._sent = None


def _smoothed(before: float, measured: float) -> float:
    return before + NEWEST * (measured - before) if before else max(measured, 0.0)
