"""Ends a process whose event loop hangs, so that the process that supervises it starts another one.

One whose event loop is blocked has lost its lease, and others do its work; but it would hold its place, its
memory and its GPU for ever.
"""

import asyncio
import faulthandler
import logging
import os
import threading
import time
from typing import NoReturn

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds. Many times as long as a process may be silent before others take its work over."""
TICKS = 12
"""Number of checks within that time."""


def end_at_once(why: str) -> NoReturn:
    """End this process, whatever its threads are waiting for; the log says where each of them was."""
    log.error(why)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def watch_loop(patience: float = PATIENCE) -> None:
    """From now on end the process if the running event loop takes no turn for `patience` seconds.

    Seconds in which the whole process was stopped do not count, for they are counted by a thread of it. When
    the loop has ended, the process has as long to end, too.
    """
    loop = asyncio.get_running_loop()
    args = (loop, patience / TICKS)
    threading.Thread(target=_watch, args=args, name="watchdog", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, tick: float) -> None:
    turned = threading.Event()
    silent = 0
    _ask(loop, turned)
    while silent < TICKS:
        time.sleep(tick)
        silent += 1
        if turned.is_set():
            turned.clear()
            silent = 0
            _ask(loop, turned)
    end_at_once(f"the event loop has not turned for {silent * tick:.0f} s: this process ends")


def _ask(loop: asyncio.AbstractEventLoop, turned: threading.Event) -> None:
    try:
        loop.call_soon_threadsafe(turned.set)
    except RuntimeError:  # it has ended
        return
