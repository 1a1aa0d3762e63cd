"""Ids of what Redis has in a sorted set, a few at a time: a list may be long, and a page of it is short."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from gateway.errors import BadRequest

IDS_AT_ONCE = 128
"""Ids that are read at once: those of a usual page, and some more."""

Run = Callable[..., Awaitable[Any]]
"""Gives the reply to a command."""


async def listed(
    run: Run, key: str, after: str | None, newest_first: bool, whole: str = ""
) -> AsyncGenerator[str, None]:
    """The ids in the sorted set `key`, by their scores. `after`: those behind this one; None: all. `whole`:
    the set of which `key` is a part, and which has `after`; empty: `key` itself.

    Raises `BadRequest` if `after` is not among them, and what `run` raises.
    """
    last = None
    if after is not None and (last := await run("ZSCORE", whole or key, after)) is None:
        raise not_listed(after)
    end, order = ("-inf", ("REV",)) if newest_first else ("+inf", ())
    start = "+inf" if newest_first else "-inf"
    while True:
        if last is not None:
            start = f"({last.decode()}"
        by_score = ("BYSCORE", *order, "LIMIT", 0, IDS_AT_ONCE, "WITHSCORES")
        found = await run("ZRANGE", key, start, end, *by_score)
        for one in found[::2]:
            yield one.decode()
        if len(found) < 2 * IDS_AT_ONCE:
            return
        last = found[-1]


def not_listed(after: str) -> BadRequest:
    """The error of a page that is to begin behind something that is not there."""
    return BadRequest(f"'after': there is no '{after[:100]}'.", param="after", code="invalid_value")
