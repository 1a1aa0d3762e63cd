"""Work that goes on in the background once it has reported that it is ready."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_READY = b"\0"


def in_background(work: Callable[[Callable[[], None]], int], log: Path) -> int:
    """Run `work(ready)` in a process and session of its own, and show what it prints.

    Returns 0 as soon as it calls `ready`; what it prints from then on goes to `log`. If it ends
    before that: its exit status. Call it before any thread or event loop exists.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _become_background(writer)
        status = 1
        try:
            status = work(lambda: _ready(log))
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writer)
    try:
        return 0 if _show(reader) else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise


def _become_background(writer: int) -> None:
    os.setsid()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for output in (1, 2):
        os.dup2(writer, output)
    os.close(writer)


def _ready(log: Path) -> None:
    """Report to the waiting command that all is ready, and print to the log from now on."""
    sys.stdout.flush()
    os.write(1, _READY)
    with log.open("ab") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)


def _show(reader: int) -> bool:
    """Print what comes through the pipe; True if it ends with the report that all is ready."""
    ready = False
    while data := os.read(reader, 4096):
        ready = data.endswith(_READY)
        sys.stdout.write(data.removesuffix(_READY).decode(errors="replace"))
        sys.stdout.flush()
    return ready
