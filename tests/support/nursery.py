"""Processes of services that are forked from one that has imported the service.

PyTorch alone takes seconds to import, and tests start hundreds of processes. A process is forked before
anything of its service has run, so it is as one that `python -m SERVICE` starts; those that `quire up` starts
in other tests show that this works, too.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AVAILABLE = sys.platform == "linux"
"""Elsewhere libraries do not bear that a process which has loaded them forks."""


class Forked:
    """A process, with what tests use of `subprocess.Popen`."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:  # between the answer and its note the number may be another process's
            if self.returncode is None:
                self.returncode = self._nursery.ask(poll=self.pid)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, number)  # a zombie at worst: only `poll` has it reaped

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that has imported a service. It ends with the one that started it."""

    def __init__(self, service: str) -> None:
        command = (sys.executable, "-m", "tests.support.nursery", service)
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        atexit.register(self.end)

    def start(self, environment: Mapping[str, str], log: Path) -> Forked:
        """A new process of the service, whose output is added to `log`."""
        return Forked(self, self.ask(environment=dict(environment), log=str(log)))

    def ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


@cache
def nursery_of(service: str) -> Nursery:
    return Nursery(service)


def main(service: str) -> None:
    """Answer requests from stdin; return in a child, when it has ended."""
    importlib.import_module(f"{service}.__main__")
    gc.collect()
    gc.freeze()  # a collection would write to pages that children share
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif answer := os.fork():
            pass
        else:
            become(service, **asked)
            return
        print(json.dumps(answer), flush=True)


def become(service: str, environment: dict[str, str], log: str) -> None:
    """Be a process of the service, as if this one had been started as that."""
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(out)
    os.environ.clear()
    os.environ.update(environment)
    gc.unfreeze()
    runpy.run_module(service, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
