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
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


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


def keep_freed_memory() -> None:
    """Have the process keep what it frees for what it allocates next.

    Activations come and go at every step; given back to the system, each page of them would be asked
    for and cleared again. Does nothing where the C library knows no `mallopt`.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


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
