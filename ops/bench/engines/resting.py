"""A process that rests while others are measured."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import psutil

END_SECONDS = 20


@dataclass(frozen=True)
class Resting:
    """A process and its children, as one group: stopped (SIGSTOP) unless `awake`."""

    popen: "subprocess.Popen[str]"

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, command: Sequence[str], environment: Mapping[str, str], log: IO[str] | None = None
    ) -> Iterator["Resting"]:
        """Start the command, awake, and end it with the block. What it prints goes to `log`, else to a pipe.

        Raises `OSError` if there is no such program.
        """
        popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log or subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield cls(popen)
        finally:
            _end(popen)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        os.killpg(self.popen.pid, signal.SIGCONT)
        try:
            yield
        finally:
            self.rest()

    def rest(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGSTOP)

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time that the process and its children have used so far, by process id."""
        used = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.popen.pid)
            for process in (main, *main.children(recursive=True)):
                times = process.cpu_times()
                used[str(process.pid)] = times.user + times.system
        return used


def _end(popen: "subprocess.Popen[str]") -> None:
    """Asked first, then killed; what the process has left of its group too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGCONT)
        os.killpg(popen.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.communicate(timeout=END_SECONDS)
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
