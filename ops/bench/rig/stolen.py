"""Core time that a hypervisor takes from this machine and gives to others, as Linux counts it ("steal").

Threads that compute a step together wait for each other. So a step takes longer by far more than the share of
time that is stolen.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

STAT = Path("/proc/stat")
STEAL = 8
"""Column of the stolen time in the line of all cores."""
CALM = 0.01
"""Share of the cores' time that a run may lose, if others can replace it."""

Result = TypeVar("Result")
Run = TypeVar("Run")


def stolen_share(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` returns, and the share of all cores' time that was stolen meanwhile.

    The share is 0 where stolen time is not counted.
    """
    share = stolen_since()
    return work(), share()


def stolen_since() -> Callable[[], float]:
    """What tells the share of all cores' time that was stolen between this call and its own."""
    begun, before = time.perf_counter(), _stolen_seconds()

    def share() -> float:
        available = (os.cpu_count() or 1) * (time.perf_counter() - begun)
        return (_stolen_seconds() - before) / available

    return share


def calm(runs: Sequence[Run], stolen: Callable[[Run], float]) -> Sequence[Run]:
    """The runs that lost no more than `CALM`; all if each lost more. `stolen`: the share that a run lost."""
    return [run for run in runs if stolen(run) <= CALM] or runs


def _stolen_seconds() -> float:
    """Seconds that were stolen from the cores since the machine started."""
    if not STAT.exists():
        return 0.0
    with STAT.open() as lines:
        return int(next(lines).split()[STEAL]) / os.sysconf("SC_CLK_TCK")
