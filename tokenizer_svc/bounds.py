"""What the processes have in common that a tokenizer starts for work that may take any time or memory."""

import os
import resource
import signal

from ops.runtime.lifeline import tie_to_parent

_KEPT = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def environment() -> dict[str, str]:
    """What such a process gets of the environment: no password and no token."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def set_bounds(memory: int) -> None:
    """To be called at its start: it ends with its owner, and has an address space of `memory` bytes.

    It has less where its owner has less (`ulimit -v`), which no process may raise.
    """
    tie_to_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the owner ends this process, once it has no calls
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        memory = min(memory, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
