"""The control groups of this process (Linux), whose limits are a container's."""

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""The process's control groups. A line for each hierarchy: number, controllers, path of the group."""


def groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of the control groups that may limit what `controller` (memory, cpu) controls, from the
    process's own group up; and whether they are of version 2."""
    lines = MEMBERSHIP.read_text().splitlines() if MEMBERSHIP.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and controller not in controllers.split(","):
            continue
        base = GROUPS / controller if controllers else GROUPS
        own = base / path.lstrip("/")
        for group in (own, *own.parents):
            if group.is_relative_to(base):
                yield group, not controllers


def text_of(file: Path) -> str:
    """The text of `file`; "max", which is no limit, if there is no such file."""
    return file.read_text().strip() if file.is_file() else "max"
