"""Memory of the device: the storages of tensors that a launch was given, at their real addresses."""

import ctypes
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from tests.support.ptx.parse import PtxError
from tests.support.ptx.types import UNSIGNED, Array


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

    def load(self, addresses: Array, bits: int, text: str) -> Array:
        """Unsigned integers [n] of `bits`. Raises `PtxError` if one lies elsewhere, or not where it could."""
        found = np.empty(len(addresses), UNSIGNED[bits])
        for chosen, words, at in self._places(addresses, bits, text):
            found[chosen] = words[at]
        return found

    def store(self, addresses: Array, values: Array, text: str) -> None:
        for chosen, words, at in self._places(addresses, values.itemsize * 8, text):
            words[at] = values[chosen]

    def _places(self, addresses: Array, bits: int, text: str) -> Iterable[tuple[Array | slice, Array, Array]]:
        """Which of the addresses lie in a storage, that storage as words, and which words they are."""
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
            words = self._bytes[number][: self._sizes[number] // size * size].view(UNSIGNED[bits])
            yield chosen, words, (offsets // np.uint64(size)).astype(np.int64)


def _bytes_at(start: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
