"""A process of a benchmark that is asked a line at a time, and answers each with a line."""

import os
import subprocess
import sys
from typing import Self


class Peer:
    """Python, running a module."""

    def __init__(self, module: str, *arguments: str, **environment: str) -> None:
        """`environment`: beside this process's own. Returns when it has printed its first line: `ready`."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self.line()

    def line(self) -> str:
        """The next line that it prints. Raises `RuntimeError` if it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with {self.process.wait()}")
        return line

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Send a line and wait for the answer."""
        self.send(line)
        return self.line()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
