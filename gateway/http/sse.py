"""Answers as server-sent events (HTML Living Standard, section 9.2).

The response starts with its first event, so that an error before that is an ordinary HTTP error. A later
error is an event such as `data: {"error": …}`, after which the stream ends without its end mark.

Clients and proxies give up a connection on which nothing comes for some minutes, as while a long prompt is
computed or a call is written. So a stream that has sent nothing for `KEEP_ALIVE_SECONDS` sends something that
changes nothing for the client. This may be the first that it sends: then the response starts with it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from math import inf

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import GatewayError, ServerFault
from gateway.http.body_memory import Held
from gateway.http.connection import Disconnected, while_connected
from gateway.http.error_shape import last_words, refusal
from gateway.http.tracing import record

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
DONE = "data: [DONE]\n\n"
COMMENT = ":\n\n"
"""Readers of events pass over it."""
COMMENT_BETWEEN_IDS = ":\n"
"""As `COMMENT`, where events have ids: after one, openai's client takes an empty line for another event."""

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
        keep_alive: Callable[[], str] = lambda: COMMENT,
    ) -> None:
        """`last`: the end of a stream. `failed`: of one that fails; None: as the path has it, which is an
        error of HTTP if nothing was sent. `keep_alive`: what is sent where nothing else has come for a while.
        """
        super().__init__(media_type=media_type)
        self._events = events
        self._failed, self._last, self._keep_alive = failed, last, keep_alive
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
        start = {"type": "http.response.start", "status": 200, "headers": self._head}
        wire = _Wire(start, send, scope["state"]["send"])
        send_piece, clock = scope["state"]["send"], asyncio.get_running_loop().time
        held: Held = scope["state"]["body"]
        untaken = 0  # bytes held for a large piece: the client has taken it when the next one is sent
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(wire.keep_alive(self._keep_alive))
            try:
                async with aclosing(self._events) as events:
                    async for piece in events:
                        if not wire.ready:
                            await wire.begin()
                        wire.quiet_since = inf
                        body = piece.encode()
                        more = held.cover(untaken + len(body))
                        await send_piece({"type": "http.response.body", "body": body, "more_body": True})
                        if untaken:
                            held.add(-untaken)
                        untaken = more
                        wire.quiet_since = clock()
                last: str | None = self._last()
            except Exception as failure:
                error = self._expected(failure, scope["state"]["request_id"])
                record(error)
                error.__traceback__ = error.__context__ = None  # this frame is in it, and has the error
                scope["state"]["error"] = error
                last = self._failed(error)
                if last is None and wire.begun:
                    last = last_words(error, scope)
            if last is not None:
                await wire.begin()
                await send({"type": "http.response.body", "body": last.encode(), "more_body": False})
            keeping.cancel()
        if last is None:
            await refusal(error, scope)(scope, receive, send)


class _Wire:
    """The head of a stream, and what keeps it alive. These and the pieces are sent one after the other."""

    def __init__(self, start: Message, send: Send, send_piece: Send) -> None:
        self._start, self._send, self._send_piece = start, send, send_piece
        self._free = asyncio.Event()
        """What keeps the stream alive is not being sent."""
        self._free.set()
        self.begun = self.ready = False
        """`ready`: a piece can be sent at once."""
        self.quiet_since = asyncio.get_running_loop().time()
        """`inf`: a piece is being sent."""

    async def begin(self) -> None:
        """Return when a piece can be sent."""
        await self._free.wait()
        self.quiet_since = inf
        await self._begin()
        self.ready = True

    async def keep_alive(self, piece: Callable[[], str]) -> None:
        """Until cancelled, send a piece whenever nothing was sent for a while."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(KEEP_ALIVE_SECONDS - max(0.0, clock() - self.quiet_since))
            if clock() - self.quiet_since >= KEEP_ALIVE_SECONDS:
                self.ready = False
                self._free.clear()
                body = piece().encode()  # before anything waits: events have numbers
                await self._begin()
                await self._send_piece({"type": "http.response.body", "body": body, "more_body": True})
                self.quiet_since = clock()
                self._free.set()

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await self._send(self._start)
