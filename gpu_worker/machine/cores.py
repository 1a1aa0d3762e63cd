"""The processor cores that this process may use."""

import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_worker.machine.control_groups import groups, text_of

PLACES = Path("/sys/devices/system/cpu")
"""A folder for each core (Linux), which says where it lies."""


def usable() -> list[int]:
    """Numbers of the cores, ascending; all that there are where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS


def neighbouring(cores: Iterable[int]) -> list[int]:
    """The cores by package, NUMA node and core, so that a core's threads are beside each other.

    Ascending where the system does not tell.
    """

    def first_number(text: str) -> int | None:
        return int(found[0]) if (found := re.search(r"\d+", text)) else None

    def place(core: int) -> tuple[int, int, int, int]:
        folder = PLACES / f"cpu{core}"
        package, threads = (
            first_number(text_of(folder / "topology" / name))
            for name in ("physical_package_id", "thread_siblings_list")
        )
        node = max((first_number(each.name) or 0 for each in folder.glob("node[0-9]*")), default=0)
        return package or 0, node, core if threads is None else threads, core

    return sorted(cores, key=place)


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
