"""Runs a part of the check in a process of its own, so that a hang or a GPU error ends with that process.

    parent     start │ .... takes what the part has found so far .... │ over, dead, or too late: ended
    part             │ row │ row │ row ...                            │

Parts are forked from a server that has imported all modules already, so a part begins at once.
"""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from ops.bench.gpu_check.bench import Bench, Findings, Rates

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["ops.bench.gpu_check.parts"]
GRACE = 10.0
"""Seconds after its deadline in which a part may still send its results."""
END_SECONDS = 25
"""Seconds that a part has to end the processes that it has started."""


@dataclass(frozen=True)
class Part:
    """A part of the check."""

    name: str
    """Name of the part, for `--parts`."""
    measure: Callable[[Bench], None]
    """Checks or measures."""
    seconds: float
    """Seconds that the part may take."""
    shards: int = 1
    """Processes that share the part's work. More than 1 only where nothing is timed."""


def run(part: Part, deadline: float, rates: Rates, shards: int) -> Findings:
    """Run a part until the deadline, on `time.monotonic`'s clock. Returns its results."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    with ThreadPoolExecutor(shards) as threads:
        every = [
            threads.submit(_follow, part, Bench(deadline, rates, (number, shards)))
            for number in range(shards)
        ]
        found = Findings()
        for one in every:
            found.add(one.result())
    return found


def _follow(part: Part, bench: Bench) -> Findings:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_work, args=(part.measure, bench, sender))
    process.start()
    sender.close()
    found, over = Findings(), False
    try:
        while not over and receiver.poll(max(0.0, bench.deadline + GRACE - time.monotonic())):
            found, over = receiver.recv()
        if not over:
            found.wrong.append(f"{part.name}: not over in time")
    except EOFError:
        process.join()
        found.wrong.append(f"{part.name}: ended with status {process.exitcode}")
    process.join(END_SECONDS if over else 0)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.is_alive() and process.pid:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            process.join(END_SECONDS)
    return found


def _work(measure: Callable[[Bench], None], bench: Bench, sender: Connection) -> None:
    os.setsid()  # so that its children can be killed with it
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # so that it ends children with sessions of their own
    found = bench.prepare(lambda so_far: sender.send((so_far, False)))
    try:
        measure(bench)
    except BaseException as error:  # the other parts go on
        traceback.print_exc(file=sys.stderr)
        found.wrong.append(f"{measure.__module__.rpartition('.')[2]}: {type(error).__name__}: {error}")
    sender.send((found, True))
