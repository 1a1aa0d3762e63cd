"""A deployment to measure: started as a user would, with the CPU time of each of its processes."""

import contextlib
import sys
import time
from collections.abc import Mapping

import psutil

from ops.launcher.deployments import Deployment
from ops.launcher.temporary import temporary_deployment


def cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """CPU time that each process, given by its id, has used so far, user and system.

    To the nanosecond on Linux, whose files count in steps of 10 ms.
    """
    if sys.platform == "linux":  # ids of clocks as clock_getcpuclockid(3) gives them
        return {name: time.clock_gettime(~pid << 3 | 2) for name, pid in processes.items()}
    times = {name: psutil.Process(pid).cpu_times() for name, pid in processes.items()}
    return {name: used.user + used.system for name, used in times.items()}


def running(*arguments: str, **settings: str) -> contextlib.AbstractContextManager[Deployment]:
    """`quire up` with more arguments and `QUIRE_*` settings, until the block ends.

    Without speculation, if the settings do not ask for it: a model with random weights soon repeats itself,
    nearly all drafts would hold, and no figure would be one that people see.
    """
    return temporary_deployment(arguments, {"QUIRE_SPECULATION": "off"} | settings)
