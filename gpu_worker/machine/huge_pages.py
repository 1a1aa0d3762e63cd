"""Memory: for weights and pages in huge pages where there are any, for activations that which was freed.

Weights are read from end to end in every step. In pages of 4 KiB the processor would look up an address
for every 4 KiB that it reads; in huge ones for every 2 MiB.
"""

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 64 << 20
"""Bytes that are mapped at once, so that small matrices lie side by side in huge pages."""

PIECE = 2 << 20
"""Bytes that are asked for at once: a huge page."""

LINE = 64
"""Bytes of a cache line: where a tensor begins."""

_MADV_POPULATE_WRITE = 23  # mman.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> None:
    """Have the process keep what it frees for what it allocates next.

    Activations come and go at every step; given back to the system, each page of them would be asked
    for and cleared again. Does nothing where the C library knows no `mallopt`.
    """
    _set_thresholds(1 << 30)


def return_freed_memory() -> None:
    """Have the process give back what it frees, if it is large: matrices that are packed and then dropped.

    Left alone, the C library learns from the first of them to keep the others.
    """
    _set_thresholds(1 << 20)


def _set_thresholds(size: int) -> None:
    """From how many bytes on memory is mapped by itself, and how many free ones are kept."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, size)
        libc.mallopt(_M_TRIM_THRESHOLD, size)


class Memory:
    """Hands out memory piece by piece; a chunk is given back when all of its pieces are gone."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def take(self, words: int) -> Tensor:
        """int32 [words], zero, at the beginning of a cache line."""
        size = max(words, 1) * 4
        if self._chunk is None or self._used + size > len(self._chunk):
            self._chunk, self._used = _map(max(size, CHUNK)), 0
        taken = torch.frombuffer(self._chunk, dtype=torch.int32, count=max(words, 1), offset=self._used)
        self._used += -(-size // LINE) * LINE
        return taken[:words]


def forget(tensor: Tensor) -> None:
    """Give back the memory behind a tensor of a mapped file, which is not looked at again. One that is not in
    main memory stays as it is.

    The file's pages stay in the system's cache, but no longer count as this process's.
    """
    if not tensor.is_cpu:
        return
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
        _madvise(begin, length, mmap.MADV_DONTNEED)


def _madvise(begin: int, length: int, advice: int) -> int:
    """Python's own would hold up all other threads, and takes only its own maps."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(madvise(begin, length, advice))


def populate(tensors: Sequence[Tensor]) -> threading.Thread:
    """Have the system find the memory behind the tensors before they are written to, from the beginning on.

    A process is given memory when it first writes there, and waits for it; long, where others share the
    host. A thread of the lowest priority asks for it beforehand. What is there already does not change.
    The thread ends by itself, at once where the system has no such call (Linux has since 5.14).
    """
    thread = threading.Thread(target=_populate, args=(list(tensors),), name="populate", daemon=True)
    thread.start()
    return thread


def _populate(tensors: list[Tensor]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # on Linux of this thread alone
    for start in range(0, max(tensor.nbytes for tensor in tensors), PIECE):
        for tensor in tensors:
            begin = tensor.data_ptr() + start
            length = min(PIECE, tensor.nbytes - start)
            within = begin % mmap.PAGESIZE
            if length > 0 and _madvise(begin - within, length + within, _MADV_POPULATE_WRITE):
                return


def _map(size: int) -> mmap.mmap:
    chunk = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            chunk.madvise(mmap.MADV_HUGEPAGE)
    return chunk
