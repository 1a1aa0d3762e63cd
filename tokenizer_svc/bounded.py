"""What every process does that a tokenizer starts for work of any time or memory; see `child.py`."""

import json
import resource
import signal
import sys
from typing import Any

from ops.runtime.lifeline import tie_to_parent


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


def question() -> Any | None:
    """The owner's next message; None once the pipe is closed."""
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line else None


def answer(message: dict[str, Any]) -> None:
    """Send a message to the owner."""
    print(json.dumps(message), flush=True)
