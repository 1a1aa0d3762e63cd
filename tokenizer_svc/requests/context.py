"""The longest sequence that a model's workers take, as its schedulers announce it in their leases."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from proto.rpc import Lease

ContextLength = Callable[[], Awaitable[int]]
"""Gives the tokens of the longest sequence, prompt and answer together; 0 if they are not known."""

REFRESH_SECONDS = 5.0
LOOK_SECONDS = 2.0
"""Time that reading the leases may take."""


async def unknown() -> int:
    """Nobody has announced a length."""
    return 0


class AnnouncedContext:
    """Reads the leases when a length is asked for, at most once in `REFRESH_SECONDS`."""

    def __init__(
        self,
        leases: Callable[[], Awaitable[list[Lease]]],
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leases`: those of all processes; raises `ConnectionError` if they cannot be read."""
        self._leases, self._model, self._clock = leases, model, clock
        self._tokens = 0
        self._read_at = -float("inf")

    async def __call__(self) -> int:
        """The largest length of the model's schedulers; 0 if one has none yet or leases cannot be read."""
        if self._clock() - self._read_at >= REFRESH_SECONDS:
            self._read_at = self._clock()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    self._tokens = _longest(await self._leases(), self._model)
            except (ConnectionError, TimeoutError):
                self._tokens = 0
        return self._tokens


def _longest(leases: list[Lease], model: str) -> int:
    infos = [lease.info for lease in leases if lease.service == "scheduler"]
    lengths = [info.get("max_model_len") for info in infos if info.get("model") == model]
    known = [length for length in lengths if isinstance(length, int)]
    # A scheduler whose workers are not there yet may get some with a longer context.
    return max(known) if known and len(known) == len(lengths) and min(known) > 0 else 0
