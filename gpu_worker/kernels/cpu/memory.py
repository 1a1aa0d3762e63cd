"""Memory in huge pages: weights are read from end to end at every step, and each new page of 4 KB costs a
look into the page tables (16 % of a decode step's time on the machine where this was measured)."""

import ctypes
import mmap

import torch
from torch import Tensor

HUGE = 2 << 20
"""Bytes of a huge page."""

CHUNK = 32 << 20
"""Bytes that are asked of the system at once, unless more are needed: small matrices share pages."""

_ALIGNMENT = 64


def huge_tensor(count: int, dtype: torch.dtype) -> Tensor:
    """Uninitialized memory for so many numbers, in huge pages where the system has them."""
    size = count * dtype.itemsize
    if size < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(count, dtype=dtype)
    room = torch.empty(size + HUGE, dtype=torch.uint8)
    start = -room.data_ptr() % HUGE
    # Refused, it changes nothing but speed.
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(room.data_ptr() + start),
        ctypes.c_size_t(size // HUGE * HUGE),
        mmap.MADV_HUGEPAGE,
    )
    return room[start : start + size].view(dtype)


class HugePages:
    """Hands out pieces of large allocations; they are freed when no piece of one is held any more."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Uninitialized memory for so many numbers, aligned to cache lines."""
        size = -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._rest):
            if size >= CHUNK:
                return huge_tensor(count, dtype)
            self._rest = huge_tensor(CHUNK, torch.uint8)
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece[: count * dtype.itemsize].view(dtype)
