"""Answers as server-sent events (HTML Living Standard, section 9.2).

The response starts with its first event, so that an error before that is an ordinary HTTP error. A later
error is an event `data: {"error": …}`, after which the stream ends without its end mark.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.http.connection import Disconnected, while_connected
from gateway.http.tracing import record

DONE = "data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: str) -> str:
    """One event. `data` must be a single line, such as JSON without indentation."""
    return f"data: {data}\n\n"


class EventStream(Response):
    """Sends each piece of `events` as it comes, until the client disconnects.

    The server's write buffer is bounded: a client that does not read holds up its own `events` alone.
    """

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Disconnected):
            await while_connected(receive, self._send(scope, receive, send))

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, send_piece = False, scope["state"]["send"]
        try:
            async with aclosing(self._events) as events:
                async for piece in events:
                    if not begun:
                        begun = True
                        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                    await send_piece(
                        {"type": "http.response.body", "body": piece.encode(), "more_body": True}
                    )
        except GatewayError as error:
            record(error)
            if not begun:
                await error.response()(scope, receive, send)
                return
            body = event(error.body()).encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
