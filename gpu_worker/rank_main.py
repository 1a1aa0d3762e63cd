"""`python -m gpu_worker.rank_main`: the process of a rank, which rank 0 starts (`ranks/processes.py`)."""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import BinaryIO

from gpu_worker.errors import TRANSIENT, PlanError, WorkerError
from gpu_worker.ranks.announcements import failure, record
from gpu_worker.ranks.group import Group
from gpu_worker.ranks.processes import Order, read
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.backend import device_of
from gpu_worker.startup.load import load_rank, populate_memory
from gpu_worker.step.runner import Runner
from ops.runtime.lifeline import tie_to_parent
from ops.runtime.logs import start_logs
from proto import arrays
from proto.worker_pb2 import StepPlan

log = logging.getLogger(__name__)

Orders = SimpleQueue[tuple[Order, bytes]]

_RESET = 5.0
"""Seconds within which rank 0 orders a reset after an error in a step that all ranks have raised alike."""
_FIRST = 2.0
"""Seconds that this rank waits before it reports an error. Rank 0 may end first, for the same reason."""


def follow(runner: Runner, orders: Orders, answers: int, place: Callable[[], int] = lambda: 0) -> None:
    """Carry out rank 0's orders until the process ends.

    `answers`: descriptor to which grammars are announced that have been compiled, and errors of steps.
    `place`: where a step is, as `Failures` has it. Raises a step's error if rank 0 orders no reset then.
    """
    resets = 0

    def announce(session: int, grammar: int) -> None:
        with contextlib.suppress(OSError):  # rank 0 has ended, and so will this process
            os.write(answers, record(session, grammar))

    def reset() -> None:
        nonlocal resets
        runner.reset()
        resets += 1
        runner.announce_grammars(partial(announce, resets))

    runner.enter()
    runner.announce_grammars(partial(announce, resets))
    while True:
        order, body = orders.get()
        match order:
            case Order.PLAN:
                plan = StepPlan.FromString(body)
                try:
                    runner.begin(plan)
                except PlanError:
                    pass  # rank 0 raises the same and decides what comes next
                except Exception as error:
                    os.write(answers, failure(resets, place()))
                    _await_reset(orders, error)
                    reset()
            case Order.FAIL:
                runner.fail(arrays.unpack(body).tolist())
            case Order.RESET:
                reset()


def _await_reset(orders: Orders, error: Exception) -> None:
    """Drop orders until rank 0 orders a reset. Raises `error` if it does not: it waits for this rank."""
    try:
        while orders.get(timeout=_RESET)[0] is not Order.RESET:
            pass
    except Empty:
        raise error from None


def main() -> None:
    """Load this rank's share of the model, then carry out orders."""
    tie_to_parent()  # so that it ends with rank 0 even while it is stopped
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 ends this process, once it has finished its work
    started = read(sys.stdin.buffer)
    if started is None:
        return
    start = json.loads(started[1])
    rank, settings = start["rank"], WorkerSettings(**start["settings"])
    start_logs(f"worker, rank {rank}", "WARNING", settings.log_format)
    orders: Orders = SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    try:
        group = Group(rank, settings.tensor_parallel, device_of(settings), start["place"])
        runner = load_rank(settings, group)
        populate_memory(runner)
        follow(runner, orders, start["answers"], lambda: group.exchanges)
    except Exception as error:
        time.sleep(_FIRST)
        told = isinstance(error, WorkerError)
        log.error("%s", error, exc_info=None if told else error)
        hopeless = told and not isinstance(error, TRANSIENT)
        os._exit(2 if hopeless else 1)  # `sys.exit` would wait for the listening thread


def _listen(stream: BinaryIO, orders: Orders) -> None:
    """Queue orders while the rank computes. End the process when rank 0 ends, even if the rank waits."""
    try:
        while (order := read(stream)) is not None:
            orders.put(order)
    except Exception:
        log.exception("an order cannot be read, and this process ends")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
