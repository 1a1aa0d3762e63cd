"""Processes that a tokenizer starts for work that may take any time or memory, as their owner sees them.

Both ways a message is a line of JSON. `bounded.py` is the process's side.
"""

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

_KEPT = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""What such a process gets of the environment: no password and no token."""


class Child:
    """One such process at a time. When it has ended, another one can be started.

    An exchange that is broken off leaves half a message in the pipes: then the process must be ended.
    """

    def __init__(self, module: str, most_bytes: int, niceness: int = 0) -> None:
        """`module`: what `python -m` runs. `most_bytes`: of a message that it sends. `niceness`: its
        nice value; 0: its owner's."""
        self._module, self._most_bytes, self._niceness = module, most_bytes, niceness
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start a process. Raises `OSError`."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=self._most_bytes,
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
        )
        if self._niceness:
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.setpriority(os.PRIO_PROCESS, self.process.pid, self._niceness)

    async def send(self, message: object) -> None:
        """Send a message. Raises `OSError` or `EOFError` if the process has ended, and `RecursionError` for a
        message that is nested too deeply, of which nothing is sent."""
        stdin = self._running().stdin
        assert stdin is not None
        if stdin.is_closing():  # uvloop raises RuntimeError at a write
            raise EOFError
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()

    async def receive(self) -> dict[str, Any]:
        """Its next message. Raises `EOFError` if it ends, perhaps in the middle of one, and `ValueError` if a
        message is too long, or none at all because part of another one is before it."""
        stdout = self._running().stdout
        assert stdout is not None
        line = await stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(line)
        return message

    async def end(self, seconds: float = 0.0) -> int | None:
        """End the process, unless it ends by itself within `seconds`. Returns its exit status, if any."""
        process, self.process = self.process, None
        if process is None:
            return None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
        finally:  # also if the caller is cancelled meanwhile
            if process.returncode is None:
                process.kill()
        await process.communicate()  # its end is seen only once all that it has sent is read
        return process.returncode

    def _running(self) -> asyncio.subprocess.Process:
        assert self.process is not None, "it has not been started"
        return self.process
