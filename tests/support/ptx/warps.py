"""Instructions by which threads of a warp see each other's registers."""

import re
from collections.abc import Callable

import numpy as np

from tests.support.ptx.operands import Step, active_threads, parts_of, reader, writer
from tests.support.ptx.parse import Immediate, Instruction, PtxError
from tests.support.ptx.types import TYPES, Array
from tests.support.ptx.wave import WARP, Wave

REDUCTIONS: dict[str, Callable[..., Array]] = {"add": np.add, "min": np.minimum, "max": np.maximum}


def build(instruction: Instruction) -> Step | None:
    if instruction.parts[0] == "shfl":
        return _shuffle(instruction)
    if reduction := re.fullmatch(r"redux\.sync\.(add|min|max)\.([su]32)", instruction.opcode):
        return _reduction(instruction, REDUCTIONS[reduction[1]], reduction[2])
    return None


def _shuffle(instruction: Instruction) -> Step | None:
    """`shfl.sync`: a thread gets the value of another; or keeps its own, and is told so."""
    how = re.fullmatch(r"shfl\.sync\.(bfly|idx|up|down)\.b32", instruction.opcode)
    if how is None:
        return None
    to, value, by, ends, members = instruction.operands
    writes = [
        writer(each, TYPES[kind], instruction.guard)
        for each, kind in zip(parts_of(to), ("b32", "pred"), strict=False)
    ]
    read, read_by, read_ends = (reader(each, TYPES["b32"]) for each in (value, by, ends))
    active = active_threads(instruction.guard)
    _all_threads(members, instruction)

    def step(wave: Wave) -> None:
        wave.whole_warps(active(wave))
        source, inside = sources(
            how[1], read_by(wave).astype(np.int64), read_ends(wave).astype(np.int64), wave
        )
        own = np.broadcast_to(read(wave), wave.lanes)
        first = np.arange(wave.lanes) // WARP * WARP
        for write, result in zip(writes, (own[first + source], inside), strict=False):
            write(wave, result)

    return step


def sources(how: str, by: Array, ends: Array, wave: Wave) -> tuple[Array, Array]:
    """The lane that each thread gets its value of, and whether that is the one that it named."""
    lane = np.arange(wave.lanes) % WARP
    by, clamp, segment = by & 31, ends & 31, ends >> 8 & 31
    highest = lane & segment | clamp & ~segment
    if how == "up":
        wanted = lane - by
        inside = wanted >= highest
    elif how == "down":
        wanted = lane + by
        inside = wanted <= highest
    else:
        wanted = lane ^ by if how == "bfly" else lane & segment | by & ~segment
        inside = wanted <= highest
    return np.where(inside, wanted, lane), inside


def _reduction(instruction: Instruction, function: Callable[..., Array], kind: str) -> Step:
    to, value, members = instruction.operands
    read, write = reader(value, TYPES[kind]), writer(to, TYPES[kind], instruction.guard)
    read_members, active = reader(members, TYPES["b32"]), active_threads(instruction.guard)

    def step(wave: Wave) -> None:
        wave.whole_warps(active(wave))
        if active(wave) is None and (read_members(wave) != 0xFFFFFFFF).any():
            raise PtxError(f"a reduction of a part of a warp: {instruction.text}")
        own = np.broadcast_to(read(wave), wave.lanes).reshape(-1, WARP)
        write(wave, np.repeat(function.reduce(own, axis=1, dtype=own.dtype), WARP))

    return step


def _all_threads(members: object, instruction: Instruction) -> None:
    if not isinstance(members, Immediate) or members.bits & 0xFFFFFFFF != 0xFFFFFFFF:
        raise PtxError(f"a part of a warp: {instruction.text}")
