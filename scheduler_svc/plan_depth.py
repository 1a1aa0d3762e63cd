"""How many plans to have in flight, so that the worker never waits for the next one.

    step          ──▶ worker: step 1 ─ ▶ ─ step 2 ─ ▶ ─ step 3
    round trip    └ plan 1 there ┘     └ result 1 here, plan 3 there ┘

Results and plans travel while the worker computes the plans between them. For a large model one plan in
between is enough. The step of a small model on a GPU takes less time than the round trip.
"""

import math

LEAST, MOST = 2, 4
"""Bounds of the measured depth, in plans."""
NEWEST = 0.2
"""Weight of the newest measurement in a running mean."""
SLOW = 1.5
"""How much longer than its mean a slow round trip takes."""


class PlanDepth:
    """Measures steps and round trips; times are in seconds."""

    def __init__(self, fixed: int | None = None) -> None:
        """`fixed`: the number of plans, whatever is measured; None: measure."""
        self._fixed = fixed
        self._round_trip = self._step = 0.0
        self._sent: float | None = None
        """When a plan was sent to a worker that had none; None once its result has come."""

    @property
    def plans(self) -> int:
        """Plans to have in flight."""
        if self._fixed is not None:
            return self._fixed
        if not self._step:
            return LEAST
        return min(MOST, max(LEAST, 1 + math.ceil(SLOW * self._round_trip / self._step)))

    def plan_sent(self, in_flight: int, now: float) -> None:
        """A plan was sent; with it `in_flight` are under way."""
        if in_flight == 1:
            self._sent = now

    def result_came(self, step: float, now: float) -> None:
        """A result has come, whose step took `step` seconds on the worker."""
        self._step = _smoothed(self._step, step)
        if self._sent is not None:
            self._round_trip = _smoothed(self._round_trip, now - self._sent - step)
            self._sent = None


def _smoothed(before: float, measured: float) -> float:
    return before + NEWEST * (measured - before) if before else max(measured, 0.0)
