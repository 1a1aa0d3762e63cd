"""The other ranks of a worker, as rank 0 sees them: processes that it starts, tells and outlives by no step.

    scheduler ──plan──▶ rank 0 ──plan──▶ rank 1          every rank applies every plan to its own batch and
              ◀─result──  │  ◀── sums ──▶ │              pages, and samples the same tokens: rank 0 answers

A worker lives as long as all of its ranks. If one ends, rank 0 does at once, and with it the worker's lease,
so that the scheduler takes its sequences elsewhere. If rank 0 ends, however that comes, the others' pipes do.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from gpu_worker.ranks.group import Group, meeting_place
from gpu_worker.ranks.orders import Order, write
from gpu_worker.settings import WorkerSettings
from ops.runtime.child import describe_end
from proto.worker_pb2 import StepPlan

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that ranks may take to end, and their ends to be seen."""


class Followers:
    """Ranks 1 and higher of this process's worker."""

    def __init__(self, settings: WorkerSettings, device: torch.device) -> None:
        """Starts them, and returns when all have come.

        `settings`: the worker's, with the threads of one rank.
        """
        self._closing = False
        self._ending = threading.Lock()
        place = meeting_place()
        self._processes = [self._start(rank, place, settings) for rank in range(1, settings.tensor_parallel)]
        try:
            self.group = Group(0, settings.tensor_parallel, device, place)
            """Rank 0 among them."""
        except Exception:
            self._end_processes()
            raise

    def begin(self, plan: StepPlan) -> None:
        """Have them begin a step."""
        self._tell(Order.PLAN, plan.SerializeToString())

    def fail(self, slots: Sequence[int]) -> None:
        """Have them give up the sequences of these slots."""
        self._tell(Order.FAIL, np.array(slots, "<i4").tobytes())

    def reset(self) -> None:
        """Have them forget everything."""
        self._tell(Order.RESET)

    def close(self) -> None:
        """End them, after what they were told."""
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
        command = (sys.executable, "-m", "gpu_worker.ranks.follower")
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
