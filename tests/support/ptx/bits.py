"""Instructions on bits and bytes of registers."""

import re
from collections.abc import Callable
from functools import reduce

import numpy as np

from tests.support.ptx.operands import Step, elementwise
from tests.support.ptx.parse import Immediate, Instruction, PtxError
from tests.support.ptx.types import Array


def table_of(number: int) -> Callable[[Array, Array, Array], Array]:
    """`lop3`: bit i of the number is the answer where the bits of a, b, c are those of i."""

    def function(a: Array, b: Array, c: Array) -> Array:
        terms = []
        for place in range(8):
            if number >> place & 1:
                sides = (each if place >> shift & 1 else ~each for each, shift in ((a, 2), (b, 1), (c, 0)))
                terms.append(reduce(np.bitwise_and, sides))
        return reduce(np.bitwise_or, terms) if terms else np.zeros_like(a)

    return function


def permuted(a: Array, b: Array, selector: Array) -> Array:
    """`prmt`: a half-byte of the selector names a byte of b and a, or with its upper bit that one's sign."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.uint32(0)
    for place in range(4):
        chosen = selector >> np.uint32(4 * place) & np.uint32(15)
        byte = (both >> (chosen & np.uint32(7)).astype(np.uint64) * np.uint64(8)).astype(np.uint32)
        byte &= np.uint32(0xFF)
        byte = np.where(chosen > 7, (byte >> np.uint32(7)) * np.uint32(0xFF), byte)
        result = result | byte << np.uint32(8 * place)
    return result


def extracted(value: Array, start: Array, count: Array) -> Array:
    """`bfe` of 32 bits: those from `start` on; beyond the end are copies of the sign, or zeros."""
    wide = np.dtype(np.int64 if value.dtype.kind == "i" else np.uint64).type
    start, count = (np.minimum(each & np.uint32(0xFF), 32).astype(wide) for each in (start, count))
    beside = np.minimum(wide(64) - count, 63).astype(wide)
    field = value.astype(wide) >> start << beside >> beside
    return np.where(count == 0, wide(0), field).astype(value.dtype)


def extracted_of_64(value: Array, start: Array, count: Array) -> Array:
    """`bfe.u64`: those from `start` on; beyond the end are zeros."""
    start, count = ((each & np.uint32(0xFF)).astype(np.uint64) for each in (start, count))
    moved = np.where(start > 63, np.uint64(0), value >> np.minimum(start, 63).astype(np.uint64))
    mask = (np.uint64(1) << np.minimum(count, 63).astype(np.uint64)) - np.uint64(1)
    return np.where(count > 63, moved, moved & mask)


def ones(value: Array) -> Array:
    return np.bitwise_count(value).astype(np.uint32)


def build(instruction: Instruction) -> Step | None:
    opcode = instruction.opcode
    if opcode == "lop3.b32":
        *_, table = instruction.operands
        if not isinstance(table, Immediate):
            raise PtxError(f"a table, please: {instruction.text}")
        shorter = Instruction(opcode, instruction.operands[:-1], instruction.guard, instruction.text)
        return elementwise(shorter, table_of(table.bits), "b32", ("b32", "b32", "b32"))
    if opcode == "prmt.b32":
        return elementwise(instruction, permuted, "b32", ("b32", "b32", "b32"))
    if field := re.fullmatch(r"bfe\.([su]32)", opcode):
        return elementwise(instruction, extracted, field[1], (field[1], "u32", "u32"))
    if opcode == "bfe.u64":
        return elementwise(instruction, extracted_of_64, "u64", ("u64", "u32", "u32"))
    if opcode in ("popc.b32", "popc.b64"):
        return elementwise(instruction, ones, "u32", (opcode[5:],))
    return None
