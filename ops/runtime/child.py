"""One process of the deployment: started, watched, ended."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.runtime.errors import LaunchError
from ops.runtime.identity import Identity
from ops.runtime.lifeline import tied_to_parent
from ops.runtime.rotation import rotate

LOG_BYTES = 16 * 2**20
"""Size of a log beyond which it becomes an old one."""


@dataclass(frozen=True)
class Spec:
    """What to run."""

    name: str
    """Unique in the deployment: `worker-0`. Its log is `<name>.log`."""
    command: tuple[str, ...]
    stage: int
    """Stages start in ascending and end in descending order."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the launcher's own."""


class Child:
    """A process made from a spec; after its end it can be started again."""

    def __init__(self, spec: Spec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.identity: Identity | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process. Raises `LaunchError` if its program cannot be run, or its log not be opened."""
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *self.spec.command,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # A group of its own: Ctrl-C in the terminal reaches the launcher alone.
                    process_group=0,
                    preexec_fn=tied_to_parent(),
                )
            self.identity = Identity.of(self._process.pid)
        except (OSError, RuntimeError) as error:  # without room for a thread, too, that waits for its end
            self.kill()
            raise LaunchError(f"{self.spec.name}: cannot run {self.spec.command[0]}: {error}") from None

    def bound_log(self) -> None:
        """Make room in the log if it has grown too large."""
        if rotate(self.log, LOG_BYTES, in_use=True):
            self._log_start = 0

    async def wait(self) -> int:
        """Wait for the process's end; its exit status, negative for the signal that ended it."""
        assert self._process is not None
        return await self._process.wait()

    async def end(self, grace: float) -> None:
        """Ask the process to end, and after `grace` seconds make it."""
        if self._process is None or not self.running:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End the process, and whatever it started in its group, at once."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_words(self, lines: int = 12) -> str:
        """The end of what the process has logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 8192))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def describe_end(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
