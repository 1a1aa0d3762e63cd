"""Work that ends when the client disconnects."""

import asyncio
from collections.abc import Coroutine
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
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        trace.get_current_span().add_event("the client left")
        raise Disconnected
    finally:
        task.cancel()
        leaving.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
