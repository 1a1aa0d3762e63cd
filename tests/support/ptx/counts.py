"""What a launch asked of a GPU, counted."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tests.support.ptx.types import Array

SECTOR = 32
"""Bytes that memory gives at least."""
BANKS = 32
"""Of shared memory, of four bytes each: one address of each at a time."""


@dataclass
class Counts:
    instructions: Counter[str] = field(default_factory=Counter)
    """Of warps, by the first word of their names."""
    wanted: int = 0
    """Bytes of device memory that threads asked for or gave."""
    sectors: int = 0
    """That warps touched with that, of `SECTOR` bytes each."""
    turns: int = 0
    """In which shared memory answered."""
    least: int = 0
    """In which it could have answered if no two threads of a warp had wanted other words of the same bank."""

    def device_access(self, warps: Array, addresses: Array, size: int) -> None:
        """`size` bytes at each address, by a thread of the warp of that number."""
        self.wanted += size * len(addresses)
        self.sectors += len(np.unique(np.stack((warps, addresses // np.uint64(SECTOR))), axis=1).T)

    def shared_access(self, warps: Array, lanes: Array, offsets: Array, size: int) -> None:
        """`size` bytes, at most 16, at each offset: a warp's threads are served 128 bytes at a time."""
        together = min(32, 128 // size)
        turns = warps * 32 + lanes // together
        words = (offsets[:, None] // 4 + np.arange(max(1, size // 4))).ravel()
        asked = np.unique(np.stack((np.repeat(turns, max(1, size // 4)), words % BANKS, words)), axis=1)
        _, conflicts = np.unique(asked[:2], axis=1, return_counts=True)
        pairs = np.unique(asked[:2], axis=1)
        most = np.zeros(int(pairs[0].max()) + 1, np.int64)
        np.maximum.at(most, pairs[0], conflicts)
        self.turns += int(most.sum())
        self.least += int((most > 0).sum())
