"""A deployment to measure: started as a user would, with the CPU time of each of its processes."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

from ops.launcher.deployments import Deployment, recorded
from ops.launcher.redis_server import free_port
from ops.runtime.lifeline import tied_to_parent

START_SECONDS = 180


@dataclass(frozen=True)
class Running:
    """A deployment that answers."""

    deployment: Deployment

    @property
    def url(self) -> str:
        return self.deployment.url

    @property
    def model(self) -> str:
        return self.deployment.model

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time that each process has used so far, user and system, by name."""
        return cpu_seconds({name: identity.pid for name, identity in self.deployment.processes.items()})


def cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """CPU time that each process, given by its id, has used so far, user and system.

    To the nanosecond on Linux, whose files count in steps of 10 ms.
    """
    if sys.platform == "linux":  # ids of clocks as clock_getcpuclockid(3) gives them
        return {name: time.clock_gettime(~pid << 3 | 2) for name, pid in processes.items()}
    times = {name: psutil.Process(pid).cpu_times() for name, pid in processes.items()}
    return {name: used.user + used.system for name, used in times.items()}


@contextlib.contextmanager
def running(*arguments: str, **settings: str) -> Iterator[Running]:
    """`quire up` with more arguments and `QUIRE_*` settings, until the block ends.

    Without speculation, if the settings do not ask for it: a model with random weights soon repeats itself,
    nearly all drafts would hold, and no figure would be one that people see.
    """
    port = free_port()
    command = [sys.executable, "-m", "ops.cli.main", "up", "--port", str(port), *arguments]
    environment = os.environ | {"QUIRE_SPECULATION": "off"} | settings
    launcher = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=tied_to_parent(),  # a benchmark that runs out of time is killed
    )
    try:
        assert launcher.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        for line in launcher.stdout:
            if line.startswith("ready"):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready within {START_SECONDS} s")
        else:
            raise RuntimeError("quire up ended before it was ready")
        yield Running(next(one for one in recorded() if one.port == port))
    finally:
        launcher.terminate()
        launcher.communicate(timeout=60)
