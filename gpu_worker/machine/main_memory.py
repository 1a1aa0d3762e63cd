"""Free main memory: the least of what the machine and the control groups of this process have left.

A container's limit is the limit of its control group. No error is raised when it is exceeded: the kernel ends
the process, perhaps much later, when allocated memory is first written to.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_worker.errors import CapacityError
from gpu_worker.machine.control_groups import groups, text_of

MEMINFO = Path("/proc/meminfo")


def available() -> int:
    """Bytes that this process may allocate without swapping, and without being ended by the kernel."""
    return min([_of_machine(), *_of_groups()])


def _of_machine() -> int:
    if not MEMINFO.exists():  # macOS, which does not say what is free: half of what there is
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for line in MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise CapacityError("/proc/meminfo does not say what memory is available: set QUIRE_KV_MEMORY")


def _of_groups() -> Iterator[int]:
    """Bytes that each control group has left, from the process's own group up.

    Cached files that the kernel can drop do not count as used. gVisor does not say what they are.
    """
    for group, is_second in groups("memory"):
        limits, used, droppable = _SECOND if is_second else _FIRST
        found = [int(most) for limit in limits if (most := text_of(group / limit)) != "max"]
        if found:
            stat_file = group / "memory.stat"
            lines = stat_file.read_text().splitlines() if stat_file.is_file() else ()
            stat = dict(line.split() for line in lines)
            now = text_of(group / used)
            left = min(found) - (0 if now == "max" else int(now)) + int(stat.get(droppable, 0))
            yield max(0, left)  # a group may be beyond `memory.high`


_FIRST = ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
_SECOND = ("memory.max", "memory.high"), "memory.current", "inactive_file"
"""Files with a group's limits and use, and the name of what can be dropped in `memory.stat`, by version.
Beyond `memory.high` the kernel ends no process, but slows all of the group's down."""
