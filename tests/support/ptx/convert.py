"""`cvt` and `mov`: the same number in another type, the same bits in other registers."""

from collections.abc import Callable

import numpy as np

from tests.support.ptx.operands import Reader, Step, elementwise, reader, writer
from tests.support.ptx.parse import Instruction, PtxError, Vector
from tests.support.ptx.types import E4M3, TYPES, UNSIGNED, Array, to_e4m3


def same(value: Array) -> Array:
    return value


def whole(to: str) -> Callable[[Array], Array]:
    """Towards zero; what is beyond the type becomes its end, NaN zero."""
    ends = np.iinfo(TYPES[to].decode(np.zeros(1, UNSIGNED[TYPES[to].bits])).dtype)

    def convert(value: Array) -> Array:
        cut = np.trunc(value.astype(np.float64))
        return np.where(np.isnan(cut), 0, np.clip(cut, ends.min, ends.max)).astype(ends.dtype)

    return convert


def exactly(value: Array) -> Array:
    """float16 as bfloat16 without a rounding that the instruction would name. Raises `PtxError`."""
    bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
    if (bits & np.uint32(0xFFFF)).any() and not np.isnan(value[bits & 0xFFFF != 0]).all():
        raise PtxError("a float16 that is no bfloat16, and no rounding named")
    return value.astype(np.float32)


def integer(to: str) -> Callable[[Array], Array]:
    dtype = np.dtype(f"{'i' if to[0] == 's' else 'u'}{int(to[1:]) // 8}")
    return lambda value: value.astype(dtype)


def two(high: Array, low: Array) -> Array:
    """The first operand goes to the upper half."""
    return np.stack(np.broadcast_arrays(low, high), axis=-1)


def two_e4m3(high: Array, low: Array) -> Array:
    return to_e4m3(low) | to_e4m3(high).astype(np.uint16) << np.uint16(8)


def halves_of_e4m3(pair: Array) -> Array:
    bytes_ = np.stack((pair & np.uint16(0xFF), pair >> np.uint16(8)), axis=-1)
    return E4M3[bytes_].astype(np.float16)


CONVERSIONS: dict[str, Callable[..., Array]] = {
    "cvt.f32.bf16": same,
    "cvt.f32.f16": lambda value: value.astype(np.float32),
    "cvt.f64.f32": lambda value: value.astype(np.float64),
    "cvt.rn.f32.f64": lambda value: value.astype(np.float32),
    "cvt.rn.bf16.f32": same,
    "cvt.rn.f16.f32": lambda value: value.astype(np.float16),
    "cvt.bf16.f16": exactly,
}
PAIRS = {"cvt.rn.f16x2.f32": "f16x2", "cvt.rn.bf16x2.f32": "bf16x2"}


def build(instruction: Instruction) -> Step | None:
    opcode, parts = instruction.opcode, instruction.parts
    if parts[0] == "mov" and len(parts) == 2:
        return _move(instruction, parts[1])
    if parts[0] != "cvt":
        return None
    to, of = parts[-2], parts[-1]
    if opcode in CONVERSIONS:
        return elementwise(instruction, CONVERSIONS[opcode], to, (of,))
    if opcode in PAIRS:
        return elementwise(instruction, two, PAIRS[opcode], ("f32", "f32"))
    if opcode == "cvt.rn.satfinite.e4m3x2.f32":
        return elementwise(instruction, two_e4m3, "b16", ("f32", "f32"))
    if opcode == "cvt.rn.f16x2.e4m3x2":
        return elementwise(instruction, halves_of_e4m3, "f16x2", ("b16",))
    if to[0] in "su" and of[0] in "su" and len(parts) == 3:
        return elementwise(instruction, integer(to), to, (of,))
    if to in ("f16", "f32") and of[0] in "su" and parts[1:-2] == ["rn"]:
        return elementwise(instruction, lambda value: value.astype(f"f{TYPES[to].bits // 8}"), to, (of,))
    if to == "bf16" and of in ("s8", "u8", "s16", "u16") and parts[1:-2] == ["rn"]:
        return elementwise(instruction, lambda value: value.astype(np.float32), to, (of,))
    if to[0] in "su" and of in ("f16", "f32", "f64") and parts[1:-2] == ["rzi"]:
        return elementwise(instruction, whole(to), to, (of,))
    return None


def _move(instruction: Instruction, kind: str) -> Step | None:
    to, of = instruction.operands
    if kind not in TYPES:
        return None
    if isinstance(to, Vector):
        return _unpack(instruction, to, reader(of, TYPES[kind]), TYPES[kind].bits)
    if isinstance(of, Vector):
        return _pack(instruction, of, TYPES[kind].bits)
    return elementwise(instruction, same, kind, (kind,))


def _unpack(instruction: Instruction, to: Vector, read: Reader, bits: int) -> Step:
    part = bits // len(to.parts)
    writes = [writer(each, TYPES[f"b{part}"], instruction.guard) for each in to.parts]
    own, shifts = UNSIGNED[bits].type, range(0, bits, part)

    def step(wave) -> None:
        value = read(wave)
        for write, shift in zip(writes, shifts, strict=True):
            write(wave, (value >> own(shift)).astype(UNSIGNED[part]))

    return step


def _pack(instruction: Instruction, of: Vector, bits: int) -> Step:
    part = bits // len(of.parts)
    reads = [reader(each, TYPES[f"b{part}"]) for each in of.parts]
    write = writer(instruction.operands[0], TYPES[f"b{bits}"], instruction.guard)
    own = UNSIGNED[bits]

    def step(wave) -> None:
        value = reads[0](wave).astype(own)
        for place, read in enumerate(reads[1:], 1):
            value = value | read(wave).astype(own) << own.type(place * part)
        write(wave, value)

    return step
