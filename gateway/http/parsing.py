"""Parses what clients send: what is large, in a thread, so that streams go on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PARSED_AT_ONCE = 2**16
"""Bytes that are parsed at once (about 1 ms). More are parsed in the thread."""

# One thread: parsing holds the interpreter's lock, and more threads would only take more turns from the loop.
_PARSER = ThreadPoolExecutor(1, "parse")

Parsed = TypeVar("Parsed")


async def parsed(size: int, parse: Callable[[], Parsed]) -> Parsed:
    """What `parse` makes of `size` bytes. Raises what it raises."""
    if size <= PARSED_AT_ONCE:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_PARSER, parse)
