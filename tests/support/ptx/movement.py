"""Instructions that move numbers between registers and memory, and order them."""

import re
from collections.abc import Callable

import numpy as np

from tests.support.ptx.operands import Step, active_threads, parts_of, reader, writer
from tests.support.ptx.parse import Address, Immediate, Instruction, PtxError
from tests.support.ptx.types import TYPES, UNSIGNED, Array
from tests.support.ptx.wave import Wave

ACCESS = re.compile(r"(ld|st)\.(global|shared)\.(?:v([24])\.)?([bsuf](?:8|16|32|64))")
COPY = re.compile(r"cp\.async\.c[ag]\.shared\.global")
ATOMIC = re.compile(r"atom\.global\.gpu\.acq_rel\.(add|or)\.([bu]32)")


def build(instruction: Instruction) -> Step | None:
    opcode = instruction.opcode
    if instruction.parts[:2] == ["ld", "param"]:
        return _parameter(instruction)
    if access := ACCESS.fullmatch(opcode):
        move = _load if access[1] == "ld" else _store
        return move(instruction, access[2] == "shared", access[4])
    if COPY.fullmatch(opcode):
        return _copy(instruction)
    if opcode == "cp.async.commit_group":
        return lambda wave: wave.copies.commit(wave.mask)
    if opcode == "cp.async.wait_group":
        return _wait(instruction)
    if atomic := ATOMIC.fullmatch(opcode):
        return _atomic(instruction, atomic[1], atomic[2])
    if opcode == "fence.proxy.async.shared::cta":
        return lambda wave: wave.shared.fence(wave.chosen(wave.mask))
    return None


def _parameter(instruction: Instruction) -> Step:
    to, of = instruction.operands
    kind = TYPES[instruction.parts[-1]]
    write = writer(to, kind, instruction.guard)
    if not isinstance(of, Address) or of.offset:
        raise PtxError(f"no parameter: {instruction.text}")
    read = reader(of.base, TYPES["u64"])

    def step(wave: Wave) -> None:
        value = wave.parameters[read(wave) // np.uint64(8)]
        write(wave, kind.of(value.astype(UNSIGNED[kind.bits])))

    return step


def address_of(instruction: Instruction, place: int, kind: str) -> Callable[[Wave, Array], Array]:
    """Of those threads, unsigned."""
    operand = instruction.operands[place]
    if not isinstance(operand, Address):
        raise PtxError(f"no address: {instruction.text}")
    read, offset = reader(operand.base, TYPES[kind]), UNSIGNED[TYPES[kind].bits].type(operand.offset)
    return lambda wave, lanes: np.broadcast_to(read(wave), wave.lanes)[lanes] + offset


def _load(instruction: Instruction, shared: bool, kind: str) -> Step:
    bits, text = TYPES[kind].bits, instruction.text
    parts = parts_of(instruction.operands[0])
    address = address_of(instruction, 1, "u32" if shared else "u64")
    active = active_threads(instruction.guard)
    writes = [writer(each, TYPES[kind], instruction.guard) for each in parts]

    def step(wave: Wave) -> None:
        lanes = wave.chosen(active(wave))
        addresses = address(wave, lanes)
        _whole(addresses, bits // 8 * len(parts), text)
        count(wave, shared, lanes, addresses, bits // 8 * len(parts))
        for place, write in enumerate(writes):
            at = addresses + addresses.dtype.type(place * bits // 8)
            if shared:
                found = wave.shared.load(lanes, at, bits, text)
            else:
                found = wave.device.load(at, bits, text, wave.who(lanes))
            if len(lanes) < wave.lanes:
                values = np.zeros(wave.lanes, found.dtype)
                values[lanes] = found
                found = values
            write(wave, TYPES[kind].of(found))

    return step


def _store(instruction: Instruction, shared: bool, kind: str) -> Step:
    bits, text = TYPES[kind].bits, instruction.text
    reads = [reader(each, TYPES[f"b{bits}"]) for each in parts_of(instruction.operands[1])]
    address = address_of(instruction, 0, "u32" if shared else "u64")
    active = active_threads(instruction.guard)

    def step(wave: Wave) -> None:
        lanes = wave.chosen(active(wave))
        addresses = address(wave, lanes)
        _whole(addresses, bits // 8 * len(reads), text)
        count(wave, shared, lanes, addresses, bits // 8 * len(reads))
        for place, read in enumerate(reads):
            at = addresses + addresses.dtype.type(place * bits // 8)
            values = np.broadcast_to(read(wave), wave.lanes)[lanes]
            if shared:
                wave.shared.store(lanes, at, values, text)
            else:
                wave.device.store(at, values, text, wave.who(lanes))

    return step


def _copy(instruction: Instruction) -> Step:
    """`cp.async`: what is beyond the source's size becomes zeros. It arrives when it is waited for."""
    text, size = instruction.text, instruction.operands[2]
    if not isinstance(size, Immediate):
        raise PtxError(f"a size, please: {text}")
    words = size.bits // 4
    to, of = address_of(instruction, 0, "u32"), address_of(instruction, 1, "u64")
    given = instruction.operands[3] if len(instruction.operands) > 3 else size
    read, active = reader(given, TYPES["u32"]), active_threads(instruction.guard)

    def step(wave: Wave) -> None:
        lanes = wave.chosen(active(wave))
        targets, sources = to(wave, lanes), of(wave, lanes)
        sizes = np.broadcast_to(read(wave), wave.lanes)[lanes]
        _whole(targets, size.bits, text)
        count(wave, True, lanes, targets, size.bits)
        asking = np.flatnonzero(sizes)
        _whole(sources[asking], size.bits, text)
        count(wave, False, lanes[asking], sources[asking], size.bits)
        values = np.zeros((len(lanes), words), np.uint32)
        for word in range(words):
            reading = np.flatnonzero(sizes > 4 * word)
            at, who = sources[reading] + np.uint64(4 * word), wave.who(lanes[reading])
            values[reading, word] = wave.device.load(at, 32, text, who)
            wave.shared.expect(lanes, targets + np.uint32(4 * word), 32, text)
        wave.copies.begin(lanes, (targets, values))

    return step


def _wait(instruction: Instruction) -> Step:
    (last,) = instruction.operands
    if not isinstance(last, Immediate):
        raise PtxError(f"a number of groups, please: {instruction.text}")

    def step(wave: Wave) -> None:
        for lanes, which, (targets, values) in wave.copies.wait(wave.mask, last.bits):
            for word in range(values.shape[1]):
                to = targets[which] + np.uint32(4 * word)
                wave.shared.store(lanes, to, values[which, word], instruction.text)

    return step


def _atomic(instruction: Instruction, what: str, kind: str) -> Step:
    """One thread after the other."""
    read, active = reader(instruction.operands[2], TYPES[kind]), active_threads(instruction.guard)
    address, write = (
        address_of(instruction, 1, "u64"),
        writer(instruction.operands[0], TYPES[kind], instruction.guard),
    )

    def step(wave: Wave) -> None:
        lanes = wave.chosen(active(wave))
        addresses = address(wave, lanes)
        count(wave, False, lanes, addresses, 4)
        values, before = np.broadcast_to(read(wave), wave.lanes), np.zeros(wave.lanes, np.uint32)
        for lane, at in zip(lanes, addresses[:, None], strict=True):
            before[lane] = wave.device.load(at, 32, instruction.text)[0]
            after = before[lane] + values[lane] if what == "add" else before[lane] | values[lane]
            wave.device.store(at, np.array([after], np.uint32), instruction.text)
        write(wave, before)

    return step


def _whole(addresses: Array, size: int, text: str) -> None:
    if (addresses % addresses.dtype.type(size)).any():
        raise PtxError(f"an address that {size} does not divide: {text}")


def count(wave: Wave, shared: bool, lanes: Array, addresses: Array, size: int) -> None:
    if wave.counts is None or not len(lanes):
        return
    if shared:
        offsets = addresses.astype(np.int64)
        wave.counts.shared_access(lanes // 32, lanes % 32, offsets, size)
    else:
        wave.counts.device_access(lanes // 32, addresses, size)
