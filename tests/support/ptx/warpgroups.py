"""Products of matrices by groups of four warps, which go on by themselves: `wgmma`.

    sums      [64, N] in registers: warp w of the group has rows 16 w to 16 w + 15, as `mma` has them, and of
              all columns; eight columns are four registers
    left      [64, 16], in registers as `mma` has it or in shared memory
    right     [16, N], in shared memory

A matrix in shared memory is made of rows of 16 bytes, eight numbers that follow each other along the depth,
or along the other side if it is turned. A descriptor says where these lie, counted in rows:

    bits 0-13 start │ 16-29 leading │ 32-45 stride │ 49-51 base │ 62-63 swizzle: rows of 128, 64 or 32 bytes

Until a product is waited for, its sums are poison, and what it reads must stay.
"""

import re
from dataclasses import dataclass

import numpy as np

from tests.support.ptx.matrices import left_matrix
from tests.support.ptx.operands import Step, parts_of, reader
from tests.support.ptx.parse import Immediate, Instruction, PtxError, Register, Vector
from tests.support.ptx.types import TYPES, Array
from tests.support.ptx.wave import Wave

GROUP = 128
"""Threads."""
DEPTH = 16
PRODUCT = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)\.\2")
WIDTHS = {0: 1, 1: 8, 2: 4, 3: 2}
"""Rows of 16 bytes that lie side by side, by the kind of swizzle."""


def build(instruction: Instruction) -> Step | None:
    if found := PRODUCT.fullmatch(instruction.opcode):
        return _product(instruction, int(found[1]), found[2])
    if instruction.opcode == "wgmma.fence.sync.aligned":
        return lambda wave: None  # registers are written in the order of instructions here
    if instruction.opcode == "wgmma.commit_group.sync.aligned":
        return lambda wave: wave.products.commit(wave.mask)
    if instruction.opcode == "wgmma.wait_group.sync.aligned":
        (last,) = instruction.operands
        return _wait(last.bits) if isinstance(last, Immediate) else None
    return None


@dataclass(frozen=True)
class Read:
    """What a product found in shared memory."""

    readers: Array
    addresses: Array
    words: Array


def _product(instruction: Instruction, columns: int, kind: str) -> Step:
    to, left, right, scale, *signs, turned = instruction.operands
    from_memory = not isinstance(left, Vector)
    registers = [each.number for each in parts_of(to) if isinstance(each, Register)]
    plain = [Immediate(1), Immediate(1)] + ([Immediate(0)] if from_memory else [])
    if signs != plain or len(registers) != columns // 2 or instruction.guard:
        raise PtxError(f"not known: {instruction.text}")
    added, text = reader(scale, TYPES["pred"]), instruction.text
    fragments = [reader(each, TYPES[kind + "x2"]) for each in parts_of(left)] if not from_memory else []
    descriptors = [reader(each, TYPES["u64"]) for each in ((left, right) if from_memory else (right,))]

    def step(wave: Wave) -> None:
        first = _groups(wave)
        reads: list[Read] = []
        *lefts, last = (read(wave)[first] if len(read(wave)) > 1 else read(wave) for read in descriptors)
        if from_memory:
            a = _matrix(wave, first, lefts[0], 64, False, kind, reads, text)
        else:
            parts = [np.broadcast_to(read(wave), (wave.lanes, 2)) for read in fragments]
            a = left_matrix(parts).reshape(-1, 64, DEPTH)[first // GROUP]
        b = _matrix(wave, first, last, columns, turned == Immediate(1), kind, reads, text)
        product = np.matmul(a, b.transpose(0, 2, 1))
        own = product.reshape(-1, 4, 2, 8, columns // 8, 4, 2).transpose(4, 2, 6, 0, 1, 3, 5)
        lanes = (first[:, None] + np.arange(GROUP)).ravel()
        keeps = np.broadcast_to(added(wave), wave.lanes)[lanes]
        sums = [
            value + np.where(keeps, wave.sums(number)[lanes].view(np.float32), np.float32(0))
            for number, value in zip(registers, own.reshape(len(registers), -1), strict=True)
        ]
        for number, value in zip(registers, sums, strict=True):
            wave.hide(number, lanes, value.view(np.uint32))
        wave.products.begin(lanes, (registers, reads))

    return step


def _wait(last: int) -> Step:
    def step(wave: Wave) -> None:
        done = list(wave.products.wait(wave.mask, last))
        going_on = list(wave.products.begun())
        for lanes, _, (registers, reads) in done:
            for read in reads:
                own = np.isin(read.readers, lanes)
                found = wave.shared.load(read.readers[own], read.addresses[own], 64, wave.text)
                if (found != read.words[own]).any():
                    raise PtxError(f"what a product reads was changed before it was done: {wave.text}")
            for number in registers:
                later = [others for others, (own, _) in going_on if number in own]
                wave.reveal(number, np.setdiff1d(lanes, np.concatenate(later)) if later else lanes)

    return step


def _groups(wave: Wave) -> Array:
    """The first thread of each group that is active."""
    if wave.mask is None:
        return np.arange(0, wave.lanes, GROUP)
    groups = wave.mask.reshape(-1, GROUP)
    if (groups.any(1) != groups.all(1)).any():
        raise PtxError(f"only some threads of a group come to: {wave.text}")
    return np.flatnonzero(groups.all(1)) * GROUP


def _matrix(
    wave: Wave,
    first: Array,
    descriptors: Array,
    rows: int,
    turned: bool,
    kind: str,
    reads: list[Read],
    text: str,
) -> Array:
    """float32 [groups, rows, 16] from shared memory."""
    descriptors = np.broadcast_to(descriptors, len(first)).astype(np.uint64)
    starts = ((descriptors & np.uint64(0x3FFF)) << np.uint64(4)).astype(np.int64)
    offsets = places(int(descriptors[0]), rows, turned)
    if (descriptors >> np.uint64(16) != descriptors[0] >> np.uint64(16)).any():
        raise PtxError(f"descriptors of different kinds: {text}")
    addresses = starts[:, None] + offsets.ravel()
    addresses ^= (addresses >> 7 & WIDTHS[int(descriptors[0]) >> 62] - 1) << 4
    halves = (addresses[:, :, None] + np.array([0, 8])).ravel()
    readers = np.repeat(first, 2 * offsets.size)
    wave.shared.fenced(readers, halves, text)
    words = wave.shared.load(readers, halves, 64, text)
    reads.append(Read(readers, halves, words))
    numbers = TYPES[kind].of(words.view(np.uint16)).astype(np.float32)
    if turned:
        return numbers.reshape(-1, rows // 8, DEPTH, 8).transpose(0, 1, 3, 2).reshape(-1, rows, DEPTH)
    return numbers.reshape(-1, rows, DEPTH)


def places(descriptor: int, rows: int, turned: bool) -> Array:
    """Where each row of 16 bytes begins, before the swizzle: [rows, 2], or turned [rows / 8, 16]."""
    leading, stride = (descriptor >> shift & 0x3FFF for shift in (16, 32))
    width = WIDTHS[descriptor >> 62]
    if descriptor >> 49 & 7:
        raise PtxError("a matrix that begins within a pattern of swizzles")
    if not turned:
        row, part = np.arange(rows)[:, None], np.arange(2)
        beside = leading if width == 1 else 1
        return 16 * (row % 8 * width + row // 8 * stride + part * beside)
    eight, depth = np.arange(rows // 8)[:, None], np.arange(DEPTH)
    if width == 1:
        return 16 * (eight * stride + depth % 8 + depth // 8 * leading)
    return 16 * (eight % width + eight // width * leading + depth % 8 * width + depth // 8 * stride)
