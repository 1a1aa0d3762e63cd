"""Shared memory of the programs of a wave, and who was where in it last.

Of each word of four bytes is kept which warp wrote it last and when, and which warp read it last and when;
time is counted in barriers and fences. Two warps that touch a word, one of them writing, need a barrier of
their program between them.

    stamp    │ time │ warp │      warp in the lowest byte; 255: several
"""

import numpy as np

from tests.support.ptx.parse import PtxError
from tests.support.ptx.types import UNSIGNED, Array

SEVERAL = 255


class SharedMemory:
    def __init__(self, programs: int, threads: int, size: int, base: int) -> None:
        """`size` bytes for each program, from address `base` on."""
        self._size, self._base, self._threads = size, base, threads
        self._stride = -(-size // 16) * 16
        total = programs * self._stride
        self._bytes, self._written = np.zeros(total, np.uint8), np.zeros(total, np.bool_)
        self._writes, self._reads = np.zeros(total // 4, np.int64), np.zeros(total // 4, np.int64)
        self._program = np.repeat(np.arange(programs), threads)
        self._warp = np.tile(np.arange(threads) // 32, programs)
        self._since = np.full(programs * threads, 1 << 8, np.int64)
        """Of each thread: stamps from here on are of after its last barrier."""
        self._fenced = np.zeros(programs * threads, np.int64)
        self._now = 1

    @property
    def now(self) -> int:
        return self._now

    def since(self, lanes: Array) -> Array:
        """When threads had their last barrier."""
        return self._since[lanes] >> 8

    def barrier(self, lanes: Array) -> None:
        """All threads of some programs have met."""
        self._now += 1
        self._since[lanes] = self._now << 8

    def fence(self, lanes: Array) -> None:
        """What the threads have written is there for products of warp groups, too."""
        self._now += 1
        self._fenced[lanes] = self._now

    def load(self, lanes: Array, addresses: Array, bits: int, text: str) -> Array:
        """Unsigned integers [n] of `bits` that threads read. Raises `PtxError`."""
        at, words = self._places(lanes, addresses, bits, text)
        present = self._written.view(UNSIGNED[bits])[at] if bits > 8 else self._written[at]
        if (present != (int.from_bytes(b"\1" * (bits // 8), "little") if bits > 8 else True)).any():
            raise PtxError(f"shared memory that nobody has written, or whose copy nobody waited for: {text}")
        for each in words:
            mine = self._stamps(lanes)
            self._check(self._writes[each], lanes, mine, "read", text)
            before = self._reads[each]
            others = (before >= self._since[lanes]) & ((before ^ mine) & SEVERAL != 0)
            self._reads[each] = np.where(others, mine | SEVERAL, mine)
            lost = self._reads[each] & SEVERAL != mine & SEVERAL  # several warps by one instruction
            self._reads[each[lost]] |= SEVERAL
        found: Array = self._bytes.view(UNSIGNED[bits])[at]
        return found

    def store(self, lanes: Array, addresses: Array, values: Array, text: str) -> None:
        bits = values.itemsize * 8
        at, words = self._places(lanes, addresses, bits, text)
        self._claim(lanes, words, bits < 32, text)
        self._bytes.view(UNSIGNED[bits])[at] = values
        if (self._bytes.view(UNSIGNED[bits])[at] != values).any():
            raise PtxError(f"two threads write different numbers to one place: {text}")
        for byte in range(bits // 8):
            self._written[at * (bits // 8) + byte] = True

    def expect(self, lanes: Array, addresses: Array, bits: int, text: str) -> None:
        """Something is on its way there: until it has arrived nobody may look."""
        at, words = self._places(lanes, addresses, bits, text)
        self._claim(lanes, words, bits < 32, text)
        for byte in range(bits // 8):
            self._written[at * (bits // 8) + byte] = False

    def fenced(self, lanes: Array, addresses: Array, text: str) -> None:
        """Words that a product reads by itself must have been fenced off by those who wrote them."""
        words = (addresses - self._base + self._program[lanes] * self._stride) // 4
        stamps = self._writes[words]
        warps = np.where(stamps & SEVERAL == SEVERAL, 0, stamps & SEVERAL)
        writers = self._program[lanes] * self._threads + 32 * warps
        if (stamps >> 8 >= self._fenced[writers]).any():
            raise PtxError(f"no fence between what was written and a product of it: {text}")

    def _claim(self, lanes: Array, words: list[Array], narrow: bool, text: str) -> None:
        """`narrow`: parts of words, which warps may write beside each other."""
        mine = self._stamps(lanes)
        for each in words:
            self._check(self._reads[each], lanes, mine, "write", text)
            if narrow:
                before = self._writes[each]
                others = (before >= self._since[lanes]) & ((before ^ mine) & SEVERAL != 0)
                self._writes[each] = np.where(others, mine | SEVERAL, mine)
            else:
                self._check(self._writes[each], lanes, mine, "write", text)
                self._writes[each] = mine
            lost = self._writes[each] & SEVERAL != mine & SEVERAL  # several warps by one instruction
            self._writes[each[lost]] |= SEVERAL

    def _stamps(self, lanes: Array) -> Array:
        return self._warp[lanes] | (self._now << 8)

    def _check(self, before: Array, lanes: Array, mine: Array, what: str, text: str) -> None:
        if ((before >= self._since[lanes]) & ((before ^ mine) & SEVERAL != 0)).any():
            raise PtxError(f"a {what} of what another warp touched, and no barrier between them: {text}")

    def _places(self, lanes: Array, addresses: Array, bits: int, text: str) -> tuple[Array, list[Array]]:
        """Where that is, counted in numbers of `bits`, and in words."""
        size = bits // 8
        offsets = addresses.astype(np.int64) - self._base
        if not len(offsets):
            return offsets, []
        if offsets.min() < 0 or offsets.max() + size > self._size:
            raise PtxError(f"beyond the {self._size} bytes of shared memory: {text}")
        if (offsets % size).any():
            raise PtxError(f"an address that {size} does not divide: {text}")
        offsets += self._program[lanes] * self._stride
        return offsets // size, [offsets // 4 + word for word in range(max(1, size // 4))]
