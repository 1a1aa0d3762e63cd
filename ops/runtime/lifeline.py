"""Ties the life of a child process to its parent's, so that no end of the parent leaves orphans."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie_to_parent() -> None:
    """Have this process be killed when its parent's thread ends that has started it. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def tied_to_parent() -> Callable[[], None] | None:
    """What a child runs between fork and exec (`preexec_fn`) to be killed when its parent ends.

    Linux only (`prctl(PR_SET_PDEATHSIG)`); elsewhere None, and a parent that is killed with
    SIGKILL leaves its children behind. The kernel watches the parent's *thread*: start children
    from the main thread.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec only the call itself happens
    parent = os.getpid()

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)

    return tie
