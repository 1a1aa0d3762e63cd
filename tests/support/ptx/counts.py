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
    """Bytes of device memory that warps asked for or gave: those of several threads once."""
    sectors: int = 0
    """That warps touched with that, of `SECTOR` bytes each."""
    turns: int = 0
    """In which shared memory answered."""
    least: int = 0
    """In which it could have answered if no two threads of a warp had wanted other words of the same bank."""

    def device_access(self, warps: Array, addresses: Array, size: int) -> None:
        """`size` bytes at each address, by a thread of the warp of that number."""
        own = warps.astype(np.uint64) << np.uint64(48)  # addresses have fewer bits
        self.wanted += size * len(np.unique(own | addresses))
        self.sectors += len(np.unique(own | addresses // np.uint64(SECTOR)))

    def shared_access(self, warps: Array, lanes: Array, offsets: Array, size: int) -> None:
        """`size` bytes, at most 16, at each offset: a warp's threads are served 128 bytes at a time."""
        turns = warps * 32 + lanes // min(32, 128 // size)
        words = offsets[:, None] // 4 + np.arange(max(1, size // 4))
        asked = np.unique((turns[:, None] * BANKS + words % BANKS) << 32 | words)
        banks, of_bank = np.unique(asked >> 32, return_counts=True)
        most = np.zeros(int(banks[-1]) // BANKS + 1, np.int64)
        np.maximum.at(most, banks // BANKS, of_bank)
        self.turns += int(most.sum())
        self.least += int((most > 0).sum())
