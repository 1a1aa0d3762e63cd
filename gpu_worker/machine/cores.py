"""The processor cores that this process may use."""

import math
import os
from collections.abc import Iterator

from gpu_worker.machine.control_groups import groups, text_of


def usable() -> list[int]:
    """Numbers of the cores, ascending; all that there are where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS


def granted() -> int:
    """Number of threads that can compute at the same time: one for each usable core, or fewer if a control
    group has a quota of processor time, as a container with a limit of processors has. When more threads have
    used the quota up, all of them stand still."""
    return max(1, min([len(usable()), *map(math.floor, _quotas())]))


def _quotas() -> Iterator[float]:
    """Processors whose time each control group grants, from the process's own group up."""
    for group, is_second in groups("cpu"):
        if is_second:
            quota, _, period = text_of(group / "cpu.max").partition(" ")
        else:
            quota, period = (text_of(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def restrict_to(cores: list[int]) -> None:
    """Let this thread and those that it starts run on these cores alone, where the system can do it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
