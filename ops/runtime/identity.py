"""Processes by pid and start time: a pid alone is reused, both together are not."""

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Identity:
    """One process of this machine, whether it still runs or not."""

    pid: int
    started: str
    """When it started, in the kernel's own terms; empty if it was gone before anyone looked."""

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid, _start_time(pid))

    def alive(self) -> bool:
        return bool(self.started) and _start_time(self.pid) == self.started

    def end(self, number: signal.Signals, timeout: float) -> bool:
        """Send the process a signal and wait for its end; True once it is gone. Seconds.

        Only that process is hit, never another one that got its number meanwhile.
        """
        if not hasattr(os, "pidfd_open"):  # not Linux
            return self._end_by_number(number, timeout)
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # Checked after opening: a process that gets this pid from now on has another descriptor.
            if not self.alive():
                return True
            signal.pidfd_send_signal(descriptor, number)
            ended, _, _ = select.select([descriptor], [], [], timeout)
            return bool(ended)
        except ProcessLookupError:
            return True
        finally:
            os.close(descriptor)

    def _end_by_number(self, number: signal.Signals, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        if self.alive():
            os.kill(self.pid, number)
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()


def _start_time(pid: int) -> str:
    """The process's start time; empty if there is none, or only what is left of it (a zombie)."""
    if Path("/proc/self/stat").exists():
        try:
            # After the name, which may hold anything: state is the 3rd field, start time the 22nd.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    alike = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # whoever looks
    return subprocess.run(command, env=alike, capture_output=True, text=True, check=False).stdout.strip()
