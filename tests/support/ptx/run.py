"""A launch: the kernel's blocks of instructions over all programs of the grid, some of them at a time.

Threads that are at different places go on one block after the other, those that are furthest behind first; so
they meet again where their ways do. At a barrier a thread stays until all of its program have come.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from tests.support.ptx import arithmetic, bits, convert, matrices, movement, warpgroups, warps
from tests.support.ptx.counts import Counts
from tests.support.ptx.device import DeviceMemory
from tests.support.ptx.operands import Step
from tests.support.ptx.parse import ENDS, Instruction, Name, PtxError, parse
from tests.support.ptx.types import Array
from tests.support.ptx.wave import WARP, Program, Wave

FAMILIES = (arithmetic, bits, convert, movement, warps, matrices, warpgroups)

LANES = 8192
"""Threads of a wave, about: as many as arrays are quick with."""
SHARED_BYTES = 4 << 20
"""Of shared memory that the programs of a wave have, about."""

DONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Block:
    """Steps of which the last alone may lead elsewhere than to the next block."""

    steps: list[tuple[str, Step]]
    end: Instruction | None
    target: int
    """The block that the end may lead to."""
    kinds: Counter[str]


class Code:
    """A kernel that is ready to run. Raises `PtxError` for what is not known."""

    def __init__(self, text: str) -> None:
        self.kernel = parse(text)
        self._blocks = [self._block(each) for each in self.kernel.blocks]

    def _block(self, instructions: list[Instruction]) -> Block:
        end, target = None, -1
        if instructions and instructions[-1].parts[0] in ENDS:
            end = instructions[-1]
            if end.parts[0] == "bra":
                (label,) = end.operands
                target = self.kernel.labels[label.text] if isinstance(label, Name) else -1
        body = instructions[:-1] if end else instructions
        steps = [(each.text, _build(each)) for each in body]
        return Block(steps, end, target, Counter(each.parts[0] for each in instructions))

    def launch(
        self,
        grid: Program,
        parameters: Mapping[str, int],
        device: DeviceMemory,
        shared_bytes: int,
        counts: Counts | None = None,
    ) -> None:
        """`parameters`: bits of each by its name. `shared_bytes`: of a program."""
        programs = [(x, y, z) for z, y, x in product(*(range(size) for size in reversed(grid)))]
        together = max(1, min(LANES // self.kernel.threads, SHARED_BYTES // max(1, shared_bytes)))
        with np.errstate(all="ignore"):
            for first in range(0, len(programs), together):
                some = programs[first : first + together]
                wave = Wave(self.kernel, some, first, grid, parameters, device, shared_bytes, counts)
                self._run(wave)

    def _run(self, wave: Wave) -> None:
        places = np.zeros(wave.lanes, np.int64)
        waiting = np.zeros(wave.lanes, np.bool_)
        while True:
            ready = np.where(waiting, DONE, places)
            at = int(ready.min())
            if at == DONE:
                if waiting.any():
                    raise PtxError(f"{self.kernel.name}: threads wait at a barrier that others never come to")
                return
            mask = ready == at
            wave.mask = None if mask.all() else mask
            block = self._blocks[at]
            for wave.text, step in block.steps:
                step(wave)
            if wave.counts is not None:
                count = int(mask.reshape(-1, WARP).any(axis=1).sum())
                for kind, times in block.kinds.items():
                    wave.counts.instructions[kind] += times * count
            places[mask] = at + 1
            if block.end is not None:
                self._end(block, wave, mask, places, waiting)

    def _end(self, block: Block, wave: Wave, mask: Array, places: Array, waiting: Array) -> None:
        kind, going = block.end.parts[0], mask
        if block.end.guard is not None:
            going = mask & (wave.registers[block.end.guard.register] == block.end.guard.wanted)
        if kind == "bra":
            places[going] = block.target
        elif kind in ("ret", "exit"):
            places[going] = DONE
        else:
            waiting |= going
            met = waiting.reshape(wave.programs, -1).all(axis=1)
            if met.any():
                released = np.repeat(met, wave.threads)
                wave.shared.barrier(np.flatnonzero(released))
                waiting &= ~released


def _build(instruction: Instruction) -> Step:
    for family in FAMILIES:
        step = family.build(instruction)
        if step is not None:
            return step
    raise PtxError(f"not known: {instruction.text}")
