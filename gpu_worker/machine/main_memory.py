"""Main memory that may still be taken: what the machine has left, and the control groups of this process.

A container's limit is that of its group. To pass it raises nothing: the kernel ends the process, perhaps much
later, when memory that it was given is first written to.
"""

from collections.abc import Iterator
from pathlib import Path

from gpu_worker.errors import CapacityError

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""A line for each hierarchy: number, controllers, path of the process's group."""


def available() -> int:
    """Bytes that this process may take without swapping, and without being ended for it."""
    return min([_of_machine(), *_of_groups()])


def _of_machine() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise CapacityError("/proc/meminfo does not say what memory is available: set QUIRE_KV_MEMORY")


def _of_groups() -> Iterator[int]:
    """What each group has left, from the process's own up. Files in memory that could be dropped do not count
    as used."""
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
    """None: there is no such file, or no limit in it."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)
