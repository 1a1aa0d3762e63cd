"""What has begun and ends when it is waited for: asynchronous copies, products of warp groups.

Each thread counts the groups that it has committed. What it begins belongs to its next group; a wait for all
but the last n groups ends those before them, in order. Until then nothing of it is to be seen.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

from tests.support.ptx.types import Array

Work = TypeVar("Work")


class Pending(Generic[Work]):
    def __init__(self, lanes: int) -> None:
        self._committed = np.zeros(lanes, np.int64)
        self._begun: list[tuple[Array, Array, Work]] = []

    def begun(self) -> Iterator[tuple[Array, Work]]:
        """What has not ended, and for which threads."""
        return ((lanes, work) for lanes, _, work in self._begun)

    def begin(self, lanes: Array, work: Work) -> None:
        self._begun.append((lanes, self._committed[lanes], work))

    def commit(self, active: Array | None) -> None:
        if active is None:
            self._committed += 1
        else:
            self._committed[active] += 1

    def wait(self, active: Array | None, last: int) -> Iterator[tuple[Array, Array, Work]]:
        """What ends, in the order in which it began: threads, their places where it began, the work."""
        staying = []
        for lanes, groups, work in self._begun:
            ends = groups < self._committed[lanes] - last
            if active is not None:
                ends &= active[lanes]
            if ends.any():
                yield lanes[ends], np.flatnonzero(ends), work
            if not ends.all():
                staying.append((lanes[~ends], groups[~ends], work))
        self._begun = staying
