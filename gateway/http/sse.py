"""Answers as server-sent events (HTML Living Standard, section 9.2).

The response starts with its first event, so that an error before that is an ordinary HTTP error. A later
error is an event such as `data: {"error": …}`, after which the stream ends without its end mark.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, ServerFault
from gateway.http.connection import Disconnected, while_connected
from gateway.http.error_shape import last_words, refusal
from gateway.http.tracing import record

logger = logging.getLogger(__name__)

DONE = "data: [DONE]\n\n"

_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: str) -> str:
    """One event. `data` must be a single line, such as JSON without indentation."""
    return f"data: {data}\n\n"


def named_event(name: str, data: str, id_: str = "") -> str:
    """One event with a name, and perhaps an id, with which a stream is resumed. `data`: as in `event`."""
    identified = f"id: {id_}\n" if id_ else ""
    return f"{identified}event: {name}\ndata: {data}\n\n"


class EventStream(Response):
    """Sends each piece of `events` as it comes, until the client disconnects.

    The server's write buffer is bounded: a client that does not read holds up its own `events` alone.
    """

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        media_type: str = "text/event-stream",
        failed: Callable[[GatewayError], str | None] = lambda _: None,
        last: Callable[[], str] = str,
    ) -> None:
        """`last`: the end of a stream. `failed`: of one that fails; None: as the path has it."""
        super().__init__(media_type=media_type)
        self._events = events
        self._failed, self._last = failed, last
        self._head = [(b"content-type", f"{media_type}; charset=utf-8".encode()), *_HEADERS]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Disconnected):
            await while_connected(receive, self._send(scope, receive, send))

    def _expected(self, failure: Exception, request_id: str) -> GatewayError:
        """The error that the client gets for a failure."""
        if isinstance(failure, GatewayError):
            return failure
        logger.error("request %s: an unexpected error", request_id, exc_info=failure)
        return ServerFault(request_id)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, send_piece = False, scope["state"]["send"]
        start = {"type": "http.response.start", "status": 200, "headers": self._head}
        try:
            async with aclosing(self._events) as events:
                async for piece in events:
                    if not begun:
                        begun = True
                        await send(start)
                    await send_piece(
                        {"type": "http.response.body", "body": piece.encode(), "more_body": True}
                    )
            last = self._last()
        except Exception as failure:
            error = self._expected(failure, scope["state"]["request_id"])
            record(error)
            scope["state"]["error"] = error
            if not begun:
                await refusal(error, scope)(scope, receive, send)
                return
            last = self._failed(error) or last_words(error, scope)
        if not begun:
            await send(start)
        await send({"type": "http.response.body", "body": last.encode(), "more_body": False})
