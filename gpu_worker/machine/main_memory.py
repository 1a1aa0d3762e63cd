"""Free main memory: the least of what the machine and the control groups of this process have left.

A container's limit is the limit of its control group. No error is raised when it is exceeded: the kernel ends
the process, perhaps much later, when allocated memory is first written to.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_worker.errors import CapacityError

MEMINFO = Path("/proc/meminfo")
GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""The process's control groups. A line for each hierarchy: number, controllers, path of the group."""


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

    Cached files that the kernel can drop do not count as used.
    """
    lines = MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:  # version 2
            base, limit, used, droppable = GROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit = GROUPS / "memory", "memory.limit_in_bytes"
            used, droppable = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        own = base / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_relative_to(base) and (most := _number(group / limit)) is not None:
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                yield most - (_number(group / used) or 0) + int(stat.get(droppable, 0))


def _number(file: Path) -> int | None:
    """The number in `file`; None if there is no such file, or its text is `max`: no limit."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)
