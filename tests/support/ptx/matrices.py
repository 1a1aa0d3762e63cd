"""Instructions by which a warp moves and multiplies small matrices.

8 x 8 of 16 bits     thread 4 * row + pair has the two numbers of columns 2 * pair and 2 * pair + 1
mma m16n8k16         left: four such matrices, right: two of which columns are rows, sums: two of float32
"""

import re
from collections.abc import Callable

import numpy as np

from tests.support.ptx.movement import address_of, count
from tests.support.ptx.operands import Step, active_threads, parts_of, reader, writer
from tests.support.ptx.parse import Instruction, PtxError
from tests.support.ptx.types import TYPES, Array
from tests.support.ptx.wave import WARP, Wave

MATRICES = re.compile(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16")
PRODUCT = re.compile(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16)\.\1\.f32")


def build(instruction: Instruction) -> Step | None:
    if found := MATRICES.fullmatch(instruction.opcode):
        move = _load if found[1] == "ld" else _store
        return move(instruction, int(found[2]), bool(found[3]))
    if found := PRODUCT.fullmatch(instruction.opcode):
        return _product(instruction, found[1])
    return None


Words = Callable[[Wave, Array | None, int], tuple[Array, Array]]


def _words(instruction: Instruction, place: int) -> Words:
    """Finds the words of matrix `number` in all active warps, row by row: threads that ask, and addresses.
    `place`: of the operand with the addresses."""
    address = address_of(instruction, place, "u32")

    def words(wave: Wave, those: Array | None, number: int) -> tuple[Array, Array]:
        warps = np.arange(0, wave.lanes, WARP)
        if those is not None:
            warps = warps[those[::WARP]]
        rows = (warps[:, None] + 8 * number + np.arange(8)).ravel()
        starts = address(wave, rows)
        if (starts % 16).any():
            raise PtxError(f"a row that does not begin at a multiple of 16: {instruction.text}")
        count(wave, True, rows, starts, 16)
        return np.repeat(rows, 4), (starts[:, None] + np.arange(0, 16, 4, np.uint32)).ravel()

    return words


def _turned(words: Array) -> Array:
    """With rows of each matrix as columns."""
    halves = words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(halves).reshape(-1).view(np.uint32)


def _load(instruction: Instruction, matrices: int, turned: bool) -> Step:
    writes = [writer(each, TYPES["b32"], instruction.guard) for each in parts_of(instruction.operands[0])]
    words, active = _words(instruction, 1), active_threads(instruction.guard)
    if len(writes) != matrices:
        raise PtxError(f"{matrices} registers, please: {instruction.text}")

    def step(wave: Wave) -> None:
        those = active(wave)
        wave.whole_warps(those)
        for number, write in enumerate(writes):
            found = wave.shared.load(*words(wave, those, number), 32, instruction.text)
            spread = np.zeros(wave.lanes, np.uint32)
            spread[slice(None) if those is None else those] = _turned(found) if turned else found
            write(wave, spread)

    return step


def _store(instruction: Instruction, matrices: int, turned: bool) -> Step:
    reads = [reader(each, TYPES["b32"]) for each in parts_of(instruction.operands[1])]
    words, active = _words(instruction, 0), active_threads(instruction.guard)
    if len(reads) != matrices:
        raise PtxError(f"{matrices} registers, please: {instruction.text}")

    def step(wave: Wave) -> None:
        those = active(wave)
        wave.whole_warps(those)
        for number, read in enumerate(reads):
            values = np.ascontiguousarray(np.broadcast_to(read(wave), wave.lanes))
            values = values if those is None else values[those]
            threads, at = words(wave, those, number)
            wave.shared.store(threads, at, _turned(values) if turned else values, instruction.text)

    return step


def left_matrix(registers: list[Array]) -> Array:
    """float32 [groups, 16, 16], of four registers with pairs, each [groups * 32, 2]."""
    parts = np.stack(registers).reshape(2, 2, -1, 8, 4, 2).astype(np.float32)
    return parts.transpose(2, 1, 3, 0, 4, 5).reshape(-1, 16, 16)


def _product(instruction: Instruction, kind: str) -> Step:
    """What a GPU's matrix unit keeps between its sums is not known to the last bit: here it is float32."""
    to, left, right, added = (parts_of(each) for each in instruction.operands)
    writes = [writer(each, TYPES["f32"], instruction.guard) for each in to]
    lefts, rights = ([reader(each, TYPES[kind + "x2"]) for each in side] for side in (left, right))
    sums, active = [reader(each, TYPES["f32"]) for each in added], active_threads(instruction.guard)
    if [len(writes), len(lefts), len(rights), len(sums)] != [4, 4, 2, 4]:
        raise PtxError(f"4, 4, 2 and 4 registers, please: {instruction.text}")

    def step(wave: Wave) -> None:
        wave.whole_warps(active(wave))
        shape = (wave.lanes, 2)
        a = left_matrix([np.broadcast_to(read(wave), shape) for read in lefts])
        pairs = np.stack([np.broadcast_to(read(wave), shape) for read in rights]).astype(np.float32)
        b = pairs.reshape(2, -1, 8, 4, 2).transpose(1, 0, 3, 4, 2).reshape(-1, 16, 8)
        product = np.matmul(a, b).reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, -1)
        results = [own + read(wave) for own, read in zip(product, sums, strict=True)]
        for write, result in zip(writes, results, strict=True):
            write(wave, result)

    return step
