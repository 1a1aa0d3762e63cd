"""The processor cores that this process may use."""

import os


def usable() -> list[int]:
    """Numbers of the cores, ascending; all that there are where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS


def restrict_to(cores: list[int]) -> None:
    """Let this thread and those that it starts run on these cores alone, where the system can do it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
