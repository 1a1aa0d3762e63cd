"""Main memory: huge pages for weights and KV pages, and reuse of freed memory for activations.

Weights are read from end to end in every step. With pages of 4 KiB the processor looks up an address for
every 4 KiB that it reads, with huge pages for every 2 MiB.
"""

import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

CHUNK = 64 << 20
"""Bytes that are mapped at once, so that small matrices share huge pages."""

PIECE = 2 << 20
"""Bytes that `populate` asks for at once: one huge page."""

AROUND = 2 << 20
"""Bytes of a file that the system maps at once, at most, when one of them is read."""

LINE = 64
"""Bytes of a cache line. Every tensor begins at a multiple of it."""

_MADV_POPULATE_WRITE = 23  # mman.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MOST_IN_OLD_LIBRARIES = 32 << 20  # of the second threshold, before glibc 2.35


def keep_freed_memory() -> None:
    """Let the process keep freed memory for its next allocations.

    Activations are allocated and freed at every step. If freed memory went back to the system, each page
    would have to be provided and cleared again. Does nothing where the C library has no `mallopt`.
    """
    _set_thresholds(1 << 30)


def return_freed_memory() -> None:
    """Let the process return large freed memory to the system, such as matrices that have been packed.

    By default the C library would keep it: it raises its threshold when the first such matrix is freed.
    """
    _set_thresholds(1 << 17)


def _set_thresholds(size: int) -> None:
    """Set the C library's two thresholds to `size` bytes.

    Larger allocations get a mapping of their own. More free memory than this goes back to the system.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        if not libc.mallopt(_M_MMAP_THRESHOLD, size):
            libc.mallopt(_M_MMAP_THRESHOLD, _MOST_IN_OLD_LIBRARIES)
        libc.mallopt(_M_TRIM_THRESHOLD, size)


class Memory:
    """Hands out parts of mapped chunks. A chunk is unmapped when all tensors in it are gone."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def take(self, words: int) -> Tensor:
        """A tensor int32 [words] of zeros that begins at a cache line."""
        size = max(words, 1) * 4
        if self._chunk is None or self._used + size > len(self._chunk):
            self._chunk, self._used = _map(max(size, CHUNK)), 0
        taken = torch.frombuffer(self._chunk, dtype=torch.int32, count=max(words, 1), offset=self._used)
        self._used += -(-size // LINE) * LINE
        return taken[:words]


def forget(tensor: Tensor, maps: Iterable[range]) -> None:
    """Release the memory of a tensor in a mapped file, which can still be read, from the file again.

    `maps`: addresses of such files. The file's pages stay in the system's cache, but no longer count as this
    process's memory. Nor do its neighbors that were mapped with it, and may have been forgotten before. Does
    nothing for a tensor that is in none of `maps`.
    """
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    for each in maps:
        if each.start <= begin < end <= each.stop and hasattr(mmap, "MADV_DONTNEED"):
            begin = max(begin - AROUND, each.start) // mmap.PAGESIZE * mmap.PAGESIZE
            _madvise(begin, min(end + AROUND, each.stop) - begin, mmap.MADV_DONTNEED)
            return


def _madvise(begin: int, length: int, advice: int) -> int:
    """Call `madvise` of the C library. Python's own holds the GIL, and takes only Python's own maps."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return int(madvise(begin, length, advice))


def populate(tensors: Sequence[Tensor]) -> threading.Thread:
    """Let the system provide the memory of the tensors before they are written to, from their beginnings on.

    The system provides memory when a process first writes to it, and the process waits. That takes long on a
    host that others share. So a thread of the lowest priority asks for the memory beforehand. Memory that is
    already there does not change. The thread ends by itself, at once if the system has no such call (Linux
    has it since 5.14).
    """
    thread = threading.Thread(target=_populate, args=(list(tensors),), name="populate", daemon=True)
    thread.start()
    return thread


def _populate(tensors: list[Tensor]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(
            os.PRIO_PROCESS, threading.get_native_id(), 19
        )  # on Linux this is the priority of this thread alone
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
