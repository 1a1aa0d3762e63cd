"""Long texts are worked on in threads, by tenants in turns: streams go on meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ops.runtime.turns import Turns

Result = TypeVar("Result")

LONG = 100_000
"""Characters of a text that takes 0.1 s or more."""


class Aside:
    """Threads in which functions work on texts, one at a time in each, so that memory is bounded.

    Texts above `LONG` have a thread of their own: no others wait for these.
    """

    def __init__(self) -> None:
        self._lanes = [(Turns(), ThreadPoolExecutor(1, name)) for name in ("texts", "long texts")]

    async def run(
        self, tenant: str, size: int, function: Callable[..., Result], *arguments: object
    ) -> Result:
        """What the function gives for a text of `size` characters, when it is the tenant's turn."""
        turns, thread = self._lanes[size > LONG]
        async with turns.turn(tenant):
            # If the caller leaves, the thread works on, and the next one waits for it there.
            return await asyncio.get_running_loop().run_in_executor(thread, function, *arguments)
