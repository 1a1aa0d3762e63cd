"""Parses what clients send: what is large, in a thread and by tenants in turns, so that others go on."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ops.runtime.turns import Turns

PARSED_AT_ONCE = 2**16
"""Bytes that are parsed at once (about 1 ms). More are parsed in the thread."""
PARTS_AT_ONCE = 256
"""Parts that are parsed in the thread before others have their turn."""
PART_BYTES = 256
"""Bytes that a part of a conversation is taken to have, where nobody has counted them."""

# One thread: parsing holds the interpreter's lock, and more threads would only take more turns from the loop.
_PARSER = ThreadPoolExecutor(1, "parse")
_TURNS = Turns()

Part = TypeVar("Part")
Parsed = TypeVar("Parsed")


async def parsed(tenant: str, size: int, parse: Callable[[], Parsed]) -> Parsed:
    """What `parse` makes of `size` bytes of the tenant's. Raises what it raises."""
    if size <= PARSED_AT_ONCE:
        return parse()
    async with _TURNS.turn(tenant):
        return await asyncio.get_running_loop().run_in_executor(_PARSER, parse)


async def parsed_each(
    tenant: str, size: int, parse: Callable[[Part], Parsed], parts: Sequence[Part]
) -> list[Parsed]:
    """What `parse` makes of each of the tenant's parts, of `size` bytes together. Raises what it raises."""
    made: list[Parsed] = []
    for start in range(0, len(parts), PARTS_AT_ONCE):
        some = parts[start : start + PARTS_AT_ONCE]
        made += await parsed(tenant, size, partial(_each, parse, some))
    return made


def _each(parse: Callable[[Part], Parsed], parts: Sequence[Part]) -> list[Parsed]:
    return [parse(part) for part in parts]
