"""Commands to Redis: what becomes of one that Redis refuses, or that does not reach it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.errors import Unavailable
from proto.rpc import BusAway
from proto.rpc.line import Line
from proto.rpc.resp import RedisReplyError

PASSING = (
    *("LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED", "NOREPLICAS", "BUSY"),
    *("CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"),
)
"""Beginnings of errors that pass: Redis starts, is busy, or becomes a replica; or a cluster moves keys."""
AGAIN_SECONDS = 0.5
"""Time between two looks for a Redis that is away."""

logger = logging.getLogger(__name__)


class Refused(Unavailable):
    """Redis is there, and says no: it has no room, for example."""


async def reply_of(line: Line, what: str, *command: str | int | bytes, block_seconds: float = 0) -> Any:
    """The reply to a command. `what`: what is asked for, as errors name it. `block_seconds`: time for which
    the command may wait in Redis.

    Raises `Unavailable`, and `Refused` for an error that does not pass.
    """
    try:
        (found,) = await line.execute(command, block_seconds=block_seconds)
    except BusAway as error:
        logger.warning("%s cannot be reached: %s", what, error)
        refused = isinstance(error, RedisReplyError) and not str(error).startswith(PASSING)
        kind = Refused if refused else Unavailable
        raise kind(f"The {what} cannot be reached.") from None
    return found


async def lasting(ask: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    """What `ask` returns. It is asked again for up to `seconds` while it raises `Unavailable`, but for
    `Refused`."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while True:
        try:
            return await ask()
        except Refused:
            raise
        except Unavailable:
            if clock() > end:
                raise
        await asyncio.sleep(AGAIN_SECONDS)
