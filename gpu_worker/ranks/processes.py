"""The other ranks of a worker, as rank 0 sees them: processes that it starts, sends plans to, and ends with.

    scheduler ──plan──▶ rank 0 ──plan──▶ rank 1          every rank applies every plan to its own batch and
              ◀─result──  │  ◀── sums ──▶ │              pages, and samples the same tokens: rank 0 answers

Rank 0 sends what it does itself, in the same order, as frames through pipes: kind (1 byte), length of the
body (4 bytes, little-endian), body. `gpu_worker/rank_main.py` reads them.

A worker lives as long as all of its ranks. If one ends, rank 0 does at once, and with it the worker's lease,
so that the scheduler takes its sequences elsewhere. If rank 0 ends, so do the pipes, and with them the rest.
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
    """The kinds of frame, and their bodies."""

    START = 0
    """JSON: `rank`, the `place` where the ranks meet, `settings`. The first frame."""
    PLAN = 1
    """A StepPlan: begin this step."""
    FAIL = 2
    """Packed little-endian int32: give up the sequences of these slots."""
    RESET = 3
    """Empty: forget all sequences."""


def write(stream: IO[bytes], order: Order, body: bytes = b"") -> None:
    """Send one frame. Raises `OSError` if nobody reads any more."""
    stream.write(_HEADER.pack(order, len(body)))
    stream.write(body)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[Order, bytes] | None:
    """The next frame; None once the pipe has ended."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    order, length = _HEADER.unpack(header)
    body = stream.read(length)
    return (Order(order), body) if len(body) == length else None


class RankProcesses:
    """Ranks 1 and higher of this process's worker. See `Followers` of the runner."""

    def __init__(self, settings: WorkerSettings, device: torch.device) -> None:
        """Start the processes; return once all have joined the group.

        `settings`: the worker's, with the threads of one rank. `device`: where rank 0 computes.
        """
        self._closing = False
        self._ending = threading.Lock()
        place = meeting_place()
        self._processes = [self._start(rank, place, settings) for rank in range(1, settings.tensor_parallel)]
        try:
            self.group = Group(0, settings.tensor_parallel, device, place)
            """The group of all ranks, as rank 0 sees it."""
        except Exception:
            self._end_processes()
            raise

    def begin(self, plan: StepPlan) -> None:
        """Send the step's plan to every process. Raises `OSError` if one has ended."""
        self._tell(Order.PLAN, plan.SerializeToString())

    def fail(self, slots: Sequence[int]) -> None:
        """Have every process give up the sequences of these slots."""
        self._tell(Order.FAIL, arrays.pack(slots))

    def reset(self) -> None:
        """Have every process forget all sequences."""
        self._tell(Order.RESET)

    def close(self) -> None:
        """End the processes, once they have done what they were sent."""
        self._end_processes()
        self.group.close()

    def abandon(self, error: Exception) -> None:
        """End the worker, because this rank cannot go on and the others would wait for it for ever."""
        time.sleep(_PATIENCE)  # if it is for another rank that this one failed, that one's end says more
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
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(place,))
        assert process.stdin is not None
        start = {"rank": rank, "place": place, "settings": settings.model_dump(mode="json")}
        write(process.stdin, Order.START, json.dumps(start).encode())
        threading.Thread(target=self._watch, args=(rank, process), name=f"rank {rank}", daemon=True).start()
        return process

    def _tell(self, order: Order, body: bytes = b"") -> None:
        for process in self._processes:
            assert process.stdin is not None
            write(process.stdin, order, body)

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        status = process.wait()
        if not self._closing:
            self._end(f"rank {rank} {describe_end(status)}, and the worker with it", max(status, 1))

    def _end(self, why: str, status: int) -> None:
        """End this process, whatever its threads are waiting for."""
        with self._ending:
            log.error(why)
            os._exit(status)
