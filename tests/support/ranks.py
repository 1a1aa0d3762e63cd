"""The ranks of a worker as threads of one process, which compute in turns."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gpu_worker.models.ranks import Ranks


@dataclass
class Meeting:
    """Where threads exchange what they have. One computes at a time: back ends have one team of threads."""

    count: int
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._barrier = threading.Barrier(self.count)
        self._brought: list[Any] = [None] * self.count

    def exchange(self, rank: int, brought: Any) -> list[Any]:
        """What everyone has brought, in the ranks' order."""
        self._brought[rank] = brought
        self.turn.release()
        self._barrier.wait(timeout=60)
        found = list(self._brought)
        self._barrier.wait(timeout=60)
        self.turn.acquire()
        return found


@dataclass(frozen=True)
class Thread:
    """See `Ranks`."""

    rank: int
    count: int
    meeting: Meeting

    def sum(self, tensor: Tensor) -> Tensor:
        parts = self.meeting.exchange(self.rank, tensor.clone())
        return tensor.copy_(torch.stack(parts).sum(0))

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self.meeting.exchange(self.rank, tensor), dim=1)

    def least(self, number: int) -> int:
        return min(self.meeting.exchange(self.rank, number))

    def count_replay(self) -> None:
        pass


class Together:
    """Runners, one of each rank, driven as if they were one; all have to give the same results."""

    def __init__(self, count: int, make_runner: Callable[[Ranks], Any]) -> None:
        """`make_runner`: makes that rank's runner."""
        self._meeting = Meeting(count)
        self.runners = [make_runner(Thread(rank, count, self._meeting)) for rank in range(count)]
        self.limits = self.runners[0].limits

    def execute(self, plan: Any) -> Any:
        """See `Runner`."""
        with ThreadPoolExecutor(len(self.runners)) as pool:
            results = list(pool.map(lambda runner: self._execute(runner, plan), self.runners))
        for result in results:
            result.duration_us = 0
        assert all(result == results[0] for result in results)
        return results[0]

    def _execute(self, runner: Any, plan: Any) -> Any:
        with self._meeting.turn:
            return runner.execute(plan)


def same(numbers: Sequence[Tensor]) -> bool:
    """Whether all are alike, bit by bit."""
    return all(torch.equal(each, numbers[0]) for each in numbers)
