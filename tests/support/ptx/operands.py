"""How an instruction reaches its operands: each becomes a small function of the wave."""

from collections.abc import Callable

import numpy as np

from tests.support.ptx.parse import Guard, Immediate, Instruction, Name, Operand, PtxError, Register, Vector
from tests.support.ptx.types import TYPES, UNSIGNED, Array, Type
from tests.support.ptx.wave import SHARED_BASE, Wave

Step = Callable[[Wave], None]
Reader = Callable[[Wave], Array]
Writer = Callable[[Wave, Array], None]
Active = Callable[[Wave], Array | None]
"""Threads that an instruction is for; None: all."""


def reader(operand: Operand, kind: Type) -> Reader:
    """The value, [threads] or [1] if it is the same for all."""
    if isinstance(operand, Register):
        number = operand.number
        if operand.bits < kind.bits:
            raise PtxError(f"{kind.name} from a register of {operand.bits} bits")
        return lambda wave: kind.of(wave.registers[number])
    if isinstance(operand, Immediate):
        return _constant(operand.bits, kind)
    if isinstance(operand, Name) and operand.text == "global_smem":
        return _constant(SHARED_BASE, kind)
    if isinstance(operand, Name):
        name = operand.text
        return lambda wave: kind.of(wave.special(name))
    raise PtxError(f"cannot be read: {operand}")


def _constant(bits: int, kind: Type) -> Reader:
    if kind.bits == 1:
        value = np.array([bits != 0])
    else:
        value = kind.of(np.array([bits & (1 << kind.bits) - 1], UNSIGNED[kind.bits]))
    return lambda wave: value


def writer(operand: Operand, kind: Type, guard: Guard | None) -> Writer:
    if isinstance(operand, Name) and operand.text == "_":
        return lambda wave, value: None
    if not isinstance(operand, Register):
        raise PtxError(f"cannot be written: {operand}")
    number, bits, active = operand.number, operand.bits, active_threads(guard)
    if bits < kind.bits:
        raise PtxError(f"{kind.name} to a register of {bits} bits")
    return lambda wave, value: wave.write(number, kind.to(value, bits), active(wave))


def active_threads(guard: Guard | None) -> Active:
    if guard is None:
        return lambda wave: wave.mask
    number, wanted = guard.register, guard.wanted

    def active(wave: Wave) -> Array:
        those = wave.registers[number] if wanted else ~wave.registers[number]
        return those if wave.mask is None else those & wave.mask

    return active


def parts_of(operand: Operand) -> tuple[Operand, ...]:
    """Of a vector, or the operand alone."""
    return operand.parts if isinstance(operand, Vector) else (operand,)


def elementwise(
    instruction: Instruction, function: Callable[..., Array], to: str, sources: tuple[str, ...]
) -> Step:
    """A result of type `to` for each thread, from operands of those types."""
    if len(instruction.operands) != 1 + len(sources):
        raise PtxError(f"{len(sources)} sources, please: {instruction.text}")
    write = writer(instruction.operands[0], TYPES[to], instruction.guard)
    reads = [reader(each, TYPES[kind]) for each, kind in zip(instruction.operands[1:], sources, strict=True)]
    if len(reads) == 1:
        only = reads[0]
        return lambda wave: write(wave, function(only(wave)))
    if len(reads) == 2:
        left, right = reads
        return lambda wave: write(wave, function(left(wave), right(wave)))
    return lambda wave: write(wave, function(*(read(wave) for read in reads)))
