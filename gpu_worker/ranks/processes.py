"""The other ranks of a worker: processes that rank 0 starts, sends plans to, and ends.

    scheduler ──plan──▶ rank 0 ──plan──▶ rank 1          every rank applies every plan to its own batch and
              ◀─result──  │  ◀── sums ──▶ │              pages, and samples the same tokens: rank 0 answers

For everything that it does, rank 0 sends an order to the other ranks, in the same sequence. An order is a
frame in a pipe: kind (1 byte), length of the body (4 bytes, little-endian), body. `gpu_worker/rank_main.py`
reads the orders. The only answers, in a second pipe, are the grammars that a rank has compiled, and errors
that it has raised in a step.

If a step raises an error on all ranks at the same place, as an error of the code does, the ranks are still in
step: the call ends, and the worker goes on. If not, their batches may differ, and the worker ends.

A worker lives as long as all of its ranks. If another rank ends, rank 0 ends at once, and so does the
worker's lease. Then the scheduler takes its sequences to another worker. If rank 0 ends, its pipes are
closed, and the other ranks end.
"""

import contextlib
import json
import logging
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import IO

import torch

from gpu_worker.ranks.announcements import Announce, Announcements, place_of, records
from gpu_worker.ranks.failures import Failures
from gpu_worker.ranks.group import Group, meeting_place
from gpu_worker.settings import WorkerSettings
from ops.runtime.child import describe_end
from proto import arrays
from proto.worker_pb2 import StepPlan

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that the processes of other ranks may take to end."""


_HEADER = struct.Struct("<BI")


class Order(IntEnum):
    """The kinds of order. Each has a body."""

    START = 0
    """The first order. JSON: `rank`, `settings`, and the descriptors `place` for `Group` and `answers` of the
    pipe for compiled grammars."""
    PLAN = 1
    """Begin a step. A StepPlan."""
    FAIL = 2
    """Let all further rows of these slots fail. Packed little-endian int32."""
    RESET = 3
    """Forget all sequences. Empty."""


def write(stream: IO[bytes], order: Order, body: bytes = b"") -> None:
    """Send one order. Raises `OSError` if the other end of the pipe is closed."""
    stream.write(_HEADER.pack(order, len(body)))
    stream.write(body)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[Order, bytes] | None:
    """The next order and its body; None once the pipe is closed."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    order, length = _HEADER.unpack(header)
    body = stream.read(length)
    return (Order(order), body) if len(body) == length else None


class RankProcesses:
    """Ranks 1 and higher of this process's worker. Implements `Followers` of the runner."""

    def __init__(self, settings: WorkerSettings, device: torch.device) -> None:
        """Start the processes. Returns once all ranks have joined the group.

        `settings`: the worker's settings, with the threads of one rank. `device`: the device of rank 0.
        """
        self._closing = False
        self._resets = 0
        self._announcements = Announcements(settings.tensor_parallel, lambda number: None)
        self._failures = Failures(settings.tensor_parallel - 1)
        self._ending = threading.Lock()
        place = meeting_place()
        self._processes = [self._start(rank, place, settings) for rank in range(1, settings.tensor_parallel)]
        try:
            self.group = Group(0, settings.tensor_parallel, device, place)
            """The group of all ranks, with this process as rank 0."""
        except Exception:
            self._end_processes()
            raise

    def begin(self, plan: StepPlan) -> None:
        """Let every process begin the step. Raises `OSError` if one has ended."""
        self._send(Order.PLAN, plan.SerializeToString())

    def fail(self, slots: Sequence[int]) -> None:
        """Let all further rows of these slots fail in every process."""
        self._send(Order.FAIL, arrays.pack(slots))

    def when_all_have(self, announce: Announce) -> Announce:
        """See `Followers`."""
        self._announcements = Announcements(len(self._processes) + 1, announce)
        return self._announcements

    def reset(self) -> None:
        """Let every process forget all sequences."""
        self._resets += 1
        self._failures.reset()
        self._send(Order.RESET)

    def close(self) -> None:
        """End the processes once they have carried out their orders."""
        self._end_processes()
        self.group.close()

    def failed(self, error: Exception) -> None:
        """See `Followers`."""
        if not self._failures.alike(self.group.exchanges, _PATIENCE):
            self.abandon(error)

    def abandon(self, error: Exception) -> None:
        """End the worker, because this rank has failed and the other ranks would wait for it for ever."""
        time.sleep(_PATIENCE)  # if another rank's end made this one fail, `_watch` logs that end instead
        log.error("rank 0 failed", exc_info=error)
        self._end("rank 0 ends, and the worker with it", 1)

    def _end_processes(self) -> None:
        self._closing = True
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, rank: int, place: int, settings: WorkerSettings) -> "subprocess.Popen[bytes]":
        command = (sys.executable, "-m", "gpu_worker.rank_main")
        reading, writing = os.pipe()
        answers = open(reading, "rb")  # noqa: SIM115, `_watch` closes it
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(place, writing))
        finally:
            os.close(writing)
        assert process.stdin is not None
        start = {
            "rank": rank,
            "place": place,
            "answers": writing,
            "settings": settings.model_dump(mode="json"),
        }
        write(process.stdin, Order.START, json.dumps(start).encode())
        watching = (rank, process, answers)
        threading.Thread(target=self._watch, args=watching, name=f"rank {rank}", daemon=True).start()
        return process

    def _send(self, order: Order, body: bytes = b"") -> None:
        for process in self._processes:
            assert process.stdin is not None
            write(process.stdin, order, body)

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]", answers: IO[bytes]) -> None:
        with answers:
            for resets, number in records(answers):
                if (place := place_of(number)) is not None:
                    self._failures.report(resets, place)
                elif resets == self._resets:  # otherwise it is of a call that is over
                    self._announcements(number)
        status = process.wait()
        if not self._closing:
            self._end(f"rank {rank} {describe_end(status)}, and the worker with it", max(status, 1))

    def _end(self, why: str, status: int) -> None:
        """End this process with `status`, even if its threads wait for something."""
        with self._ending:
            log.error(why)
            os._exit(status)
