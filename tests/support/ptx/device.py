"""Memory of the device: the storages of tensors that a launch was given, at their real addresses.

Of each half-word that a launch has written is kept which warp of which program did it, and when: another warp
may read it after a barrier of their program, and another program not at all, but for atomic operations.
"""

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tests.support.ptx.parse import PtxError
from tests.support.ptx.types import UNSIGNED, Array

TIME_BITS = 24


@dataclass(frozen=True)
class Threads:
    """Who reads or writes, an entry each; time is counted in barriers and fences."""

    warps: Array
    """32 times the number of the program, and the warp in it, and 1."""
    since: Array
    """Their last barrier."""
    now: int


class DeviceMemory:
    def __init__(self, tensors: Iterable[Tensor]) -> None:
        sizes: dict[int, int] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes():
                sizes[storage.data_ptr()] = max(storage.nbytes(), sizes.get(storage.data_ptr(), 0))
        self._starts = np.array(sorted(sizes), np.uint64)
        self._sizes = [sizes[start] for start in sorted(sizes)]
        self._bytes = [_bytes_at(start, sizes[start]) for start in sorted(sizes)]
        self._written: dict[int, Array] = {}
        """By storage: of each half-word, the warp that wrote it and the time."""

    def load(self, addresses: Array, bits: int, text: str, threads: Threads | None = None) -> Array:
        """Unsigned integers [n] of `bits`. `threads`: None for atomic operations. Raises `PtxError`."""
        found = np.empty(len(addresses), UNSIGNED[bits])
        for number, chosen, at in self._places(addresses, bits, text):
            found[chosen] = self._words(number, bits)[at]
            if threads is not None and number in self._written:
                self._check(self._written[number][at * bits // 16], chosen, threads, text)
        return found

    def store(self, addresses: Array, values: Array, text: str, threads: Threads | None = None) -> None:
        bits = values.itemsize * 8
        for number, chosen, at in self._places(addresses, bits, text):
            self._words(number, bits)[at] = values[chosen]
            if threads is not None:
                if number not in self._written:
                    self._written[number] = np.zeros(self._sizes[number] // 2 + 1, np.int64)
                for half in range(max(1, bits // 16)):
                    stamps = threads.warps[chosen] << TIME_BITS | threads.now
                    self._written[number][at * bits // 16 + half] = stamps

    def _check(self, stamps: Array, chosen: Array | slice, threads: Threads, text: str) -> None:
        writers, own = stamps >> TIME_BITS, threads.warps[chosen]
        others = (stamps != 0) & (writers != own)
        if (others & (writers - 1 >> 5 != own - 1 >> 5)).any():
            raise PtxError(f"a read of what another program of the launch has written: {text}")
        if (others & (stamps & (1 << TIME_BITS) - 1 >= threads.since[chosen])).any():
            raise PtxError(f"a read of what another warp has written, and no barrier between them: {text}")

    def _words(self, number: int, bits: int) -> Array:
        """A storage as unsigned integers."""
        size = bits // 8
        return self._bytes[number][: self._sizes[number] // size * size].view(UNSIGNED[bits])

    def _places(self, addresses: Array, bits: int, text: str) -> Iterator[tuple[int, Array | slice, Array]]:
        """For each storage that is meant: its number, which of the addresses, and which of its words."""
        size = bits // 8
        if not len(addresses):
            return
        if (addresses % np.uint64(size)).any():
            raise PtxError(f"an address that {size} does not divide: {text}")
        low, high = (
            int(np.searchsorted(self._starts, end, "right")) - 1 for end in (addresses.min(), addresses.max())
        )
        numbers = None if low == high else np.searchsorted(self._starts, addresses, "right") - 1
        for number in [low] if numbers is None else np.unique(numbers).tolist():
            chosen = slice(None) if numbers is None else np.flatnonzero(numbers == number)
            start = self._starts[number]
            offsets = addresses[chosen] - start
            if number < 0 or int(offsets.max()) + size > self._sizes[number]:
                raise PtxError(f"beyond all tensors of the launch: {text}")
            if start % np.uint64(size):
                raise PtxError(f"a storage that does not begin at a multiple of {size}: {text}")
            yield number, chosen, (offsets // np.uint64(size)).astype(np.int64)


def _bytes_at(start: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
