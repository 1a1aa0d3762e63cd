"""Work that ends when the client disconnects."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from opentelemetry import trace
from starlette.types import Receive

Result = TypeVar("Result")


class Disconnected(Exception):
    """The client has closed the connection."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client disconnects.

    The request's body must have been read before. Raises `Disconnected`, and whatever `work` raises.
    """
    try:
        async with asyncio.timeout(None) as connection:
            leaving = asyncio.ensure_future(_disconnect(receive, connection))
            try:
                return await work
            finally:
                leaving.cancel()
    except TimeoutError as over:
        if not connection.expired():
            raise
        if over.__cause__ is not None:
            # A frame of a TaskGroup holds the cancellation, and with it all that the request holds: only the
            # collector of garbage would find them.
            over.__cause__.__traceback__ = None
        trace.get_current_span().add_event("the client left")
        raise Disconnected from None


async def _disconnect(receive: Receive, connection: asyncio.Timeout) -> None:
    """Let the time of `connection` end when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    with suppress(RuntimeError):  # the work is done
        connection.reschedule(0)
