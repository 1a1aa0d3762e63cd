"""Core time that a hypervisor takes from this machine and gives to others, as Linux counts it ("steal").

Threads that compute a step together wait for each other. So a step takes longer by far more than the share of
time that is stolen.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

STAT = Path("/proc/stat")
STEAL = 8
"""Column of the stolen time in the line of all cores."""

Result = TypeVar("Result")


def stolen_share(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` returns, and the share of all cores' time that was stolen meanwhile.

    The share is 0 where stolen time is not counted.
    """
    begun, before = time.perf_counter(), _stolen_seconds()
    result = work()
    available = (os.cpu_count() or 1) * (time.perf_counter() - begun)
    return result, (_stolen_seconds() - before) / available


def _stolen_seconds() -> float:
    """Seconds that were stolen from the cores since the machine started."""
    if not STAT.exists():
        return 0.0
    with STAT.open() as lines:
        return int(next(lines).split()[STEAL]) / os.sysconf("SC_CLK_TCK")
