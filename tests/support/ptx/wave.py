"""Programs of a grid that run at once, each thread an entry of every array: what instructions change."""

from collections.abc import Mapping, Sequence

import numpy as np

from tests.support.ptx.counts import Counts
from tests.support.ptx.device import DeviceMemory, Threads
from tests.support.ptx.parse import Kernel, PtxError
from tests.support.ptx.pending import Pending
from tests.support.ptx.shared import SharedMemory
from tests.support.ptx.types import UNSIGNED, Array

WARP = 32
SHARED_BASE = 1024
"""Where shared memory begins: not at 0, so that a forgotten address shows; a multiple of all swizzles."""
POISON = {1: True, 8: 0x7F, 16: 0x7FC1, 32: 0x7FC1DEAD, 64: 0x7FF9DEAD7FC1DEAD}
"""What registers hold before they are written, by their bits: no number in any type of floats."""

Program = tuple[int, int, int]


class Wave:
    def __init__(
        self,
        kernel: Kernel,
        programs: Sequence[Program],
        first: int,
        grid: Program,
        parameters: Mapping[str, int],
        device: DeviceMemory,
        shared_bytes: int,
        counts: Counts | None,
    ) -> None:
        self.threads, self.programs = kernel.threads, len(programs)
        self.lanes = self.threads * self.programs
        self.device, self.counts = device, counts
        self.parameters = np.array([parameters[name] for name, _ in kernel.parameters], np.uint64)
        self.registers = [
            np.broadcast_to(np.array(POISON[bits], UNSIGNED[bits]), self.lanes) for bits in kernel.registers
        ]
        self.mask: Array | None = None
        """Threads that execute the current instruction; None: all."""
        self._warps = WARP * (first + np.arange(self.lanes) // self.threads) + 1
        self._warps += np.arange(self.lanes) % self.threads // WARP
        self.shared = SharedMemory(self.programs, self.threads, shared_bytes, SHARED_BASE)
        self.copies, self.products = Pending(self.lanes), Pending(self.lanes)
        self._hidden: dict[int, tuple[Array, Array]] = {}
        self.text = ""
        """The current instruction, for errors."""
        tid = np.tile(np.arange(self.threads, dtype=np.uint32), self.programs)
        self._special = {"%tid.x": tid, "%laneid": tid % np.uint32(WARP)}
        for axis, name in enumerate("xyz"):
            own = np.array([program[axis] for program in programs], np.uint32)
            self._special[f"%ctaid.{name}"] = np.repeat(own, self.threads)
            self._special[f"%nctaid.{name}"] = np.full(self.lanes, grid[axis], np.uint32)
        for place, (name, _) in enumerate(kernel.parameters):
            self._special[name] = np.array([8 * place], np.uint64)  # its address

    def special(self, name: str) -> Array:
        """What a register of the machine holds, or where a parameter lies."""
        if name not in self._special:
            raise PtxError(f"not known: {name}")
        return self._special[name]

    def who(self, lanes: Array) -> Threads:
        """Threads as device memory wants to know them."""
        return Threads(self._warps[lanes], self.shared.since(lanes), self.shared.now)

    def write(self, number: int, bits: Array, active: Array | None) -> None:
        """Arrays of registers are never changed but replaced, so that several may share one."""
        if active is not None:
            self.registers[number] = np.where(active, bits, self.registers[number])
        elif len(bits) == self.lanes:
            self.registers[number] = bits
        else:
            self.registers[number] = np.broadcast_to(bits, self.lanes)

    def sums(self, number: int) -> Array:
        """A register that products of warp groups add to, as they see it."""
        if number not in self._hidden:
            return self.registers[number]
        bits, here = self._hidden[number]
        return np.where(here, bits, self.registers[number])

    def hide(self, number: int, lanes: Array, bits: Array) -> None:
        """From here on only such products see what the register holds."""
        all_bits, here = self.sums(number).copy(), np.zeros(self.lanes, np.bool_)
        if number in self._hidden:
            here |= self._hidden[number][1]
        all_bits[lanes], here[lanes] = bits, True
        self._hidden[number] = all_bits, here
        self.registers[number] = np.where(here, np.uint32(POISON[32]), self.registers[number])

    def reveal(self, number: int, lanes: Array) -> None:
        bits, here = self._hidden[number]
        shown = self.registers[number].copy()
        shown[lanes] = bits[lanes]
        self.registers[number] = shown
        here[lanes] = False

    def chosen(self, active: Array | None) -> Array:
        """Numbers of the threads that are active."""
        return np.arange(self.lanes) if active is None else np.flatnonzero(active)

    def whole_warps(self, active: Array | None) -> None:
        """What all threads of a warp do together they must all come to. Raises `PtxError`."""
        if active is not None:
            of_warp = active.reshape(-1, WARP)
            if (of_warp.any(1) != of_warp.all(1)).any():
                raise PtxError(f"only some threads of a warp come to: {self.text}")
