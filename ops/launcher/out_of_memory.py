"""Whether the kernel has ended processes for want of memory.

It does so with SIGKILL, as an operator does. But then the process's own work may be the reason.
"""

from pathlib import Path

COUNTERS = Path("/proc/vmstat")
"""Linux only. Its line `oom_kill` counts such ends on the whole machine, those in containers included."""


class OutOfMemory:
    """Compares the kernel's counter with what it was before."""

    def __init__(self, counters: Path = COUNTERS) -> None:
        self._counters = counters
        self._before = self._count()

    def ran_out(self) -> bool | None:
        """Whether a process was ended so since this was asked last; None if that is not known."""
        before, self._before = self._before, self._count()
        return None if self._before is None else self._before != before

    def _count(self) -> int | None:
        try:
            lines = self._counters.read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
