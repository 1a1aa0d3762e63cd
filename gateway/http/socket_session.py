"""One WebSocket: several requests at once, each answered as it would be over HTTP.

A request goes through the whole application in this process, and so has its limits, counts and traces. Who
does not read holds up its own answers: they are sent no faster than the socket takes them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.errors import BadRequest, GatewayError, Overloaded
from gateway.http.frames import (
    CancelFrame,
    KeyFrame,
    NotUnderstood,
    Pieces,
    RequestFrame,
    answer_frame,
    end_frame,
    error_frame,
    event_frame,
    read_frame,
)
from gateway.http.json_text import text_of
from gateway.http.own_requests import json_post
from gateway.parsing import parsed

MAX_AT_ONCE = 32
"""Requests of one socket that are answered at once."""
IDLE_SECONDS = 600.0
"""Time after which a socket is closed on which nothing is asked or answered."""
_STREAMS = ("text/event-stream", "application/x-ndjson")
_COPIED = frozenset(
    (b"host", b"origin", b"authorization", b"x-api-key", b"api-key", b"traceparent", b"user-agent")
)
"""Headers of the socket that each of its requests has."""
_GOING_AWAY = 1001

Shown = Callable[[str], Awaitable[str]]
"""Takes the header `Authorization` that a key would come in, and gives the tenant; "" for no valid key."""


class SocketSession:
    """The requests of one socket."""

    def __init__(self, app: ASGIApp, socket: WebSocket, key: str | None, tenant: str, shown: Shown) -> None:
        """`app`: answers requests. `key`: an API key that came with the socket, and `tenant` whose it is.
        `shown`: called for each key that comes later, before the next message is taken."""
        self._app, self._socket, self._key, self._tenant, self._shown = app, socket, key, tenant, shown
        self._requests: dict[str, _OwnRequest] = {}
        """Those whose answers the socket has not taken to the end, by id."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the client leaves, or has done nothing for `IDLE_SECONDS`."""
        try:
            while (text := await self._next()) is not None:
                await self._take(text)
            await self._socket.close(_GOING_AWAY, "idle")
        except WebSocketDisconnect:
            return
        finally:
            for request in self._requests.values():
                request.leave()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next(self) -> str | None:
        """The next message; None if the socket was idle for too long."""
        while True:
            if self._socket.application_state is not WebSocketState.CONNECTED:  # found out while sending
                raise WebSocketDisconnect
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    return await self._socket.receive_text()
            except TimeoutError:
                if not self._requests:
                    return None
            except KeyError:  # bytes
                return ""

    async def _take(self, text: str) -> None:
        try:
            frame = await parsed(self._tenant, len(text), lambda: read_frame(text))
        except BadRequest as error:
            await _say(
                self._socket, error_frame(error, error.id if isinstance(error, NotUnderstood) else None)
            )
            return
        if isinstance(frame, KeyFrame):
            self._key = frame.key
            # Large messages still count as those of whose key was valid before.
            self._tenant = await self._shown(f"Bearer {frame.key}") or self._tenant
        elif isinstance(frame, CancelFrame):
            if (request := self._requests.get(frame.id)) is not None:
                request.cancel()
        elif (refusal := self._refusal(frame)) is not None:
            await _say(self._socket, error_frame(refusal, frame.id))
        else:
            self._begin(frame, await parsed(self._tenant, len(text), lambda: text_of(frame.body)))

    def _refusal(self, frame: RequestFrame) -> GatewayError | None:
        if frame.id in self._requests:
            return BadRequest("A request of this id is under way.", param="id", code="invalid_value")
        if len(self._requests) >= MAX_AT_ONCE:
            return Overloaded(f"A socket has at most {MAX_AT_ONCE} requests under way.")
        return None

    def _begin(self, frame: RequestFrame, body: bytes) -> None:
        headers = {name: value for name, value in self._socket.scope["headers"] if name in _COPIED}
        if self._key is not None:
            headers[b"authorization"] = b"Bearer " + self._key.encode()
        if frame.idempotency_key is not None:
            headers[b"idempotency-key"] = frame.idempotency_key.encode()
        scope = json_post(frame.path, len(body), headers, come_from=self._socket.scope)
        request = _OwnRequest(frame.id, self._socket, scope, lambda: self._requests.pop(frame.id, None))
        self._requests[frame.id] = request
        task = asyncio.create_task(request.run(self._app, body), name="request of a socket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _OwnRequest:
    """One request, whose answer goes to the socket in frames."""

    def __init__(self, id_: str, socket: WebSocket, scope: Scope, ended: Callable[[], object]) -> None:
        """`ended`: called once, as soon as the client has been told of the end."""
        self._id, self._socket, self._scope, self._ended = id_, socket, scope, ended
        self._left = asyncio.Event()
        self._over = False
        self._status = 0
        self._pieces: Pieces | None = None
        self._body = bytearray()

    def cancel(self) -> None:
        """The client wants no more, and does not come back for the answer."""
        self._scope["state"]["cancelled"] = True
        self.leave()

    def leave(self) -> None:
        """As if the client had closed a connection."""
        self._left.set()

    async def run(self, app: ASGIApp, body: bytes) -> None:
        # An error that nobody has planned is raised once more after it was answered and logged.
        with contextlib.suppress(Exception):
            await app(self._scope, self._receiver(body), self._send)
        if not self._over:
            await self._end(end_frame(self._id, cancelled=True))

    async def _end(self, frame: str) -> None:
        """Send the last frame. A request whose answer waits for the client is still under way."""
        self._over = True
        try:
            await _say(self._socket, frame)
        finally:
            self._ended()  # at once, so that the id is free when the client reads this

    def _receiver(self, body: bytes) -> Receive:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in messages:
                return message
            await self._left.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: Message) -> None:
        if self._left.is_set() or self._over:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            media_type = dict(message["headers"])[b"content-type"].partition(b";")[0].decode()
            self._pieces = Pieces(media_type) if media_type in _STREAMS else None
            return
        body, last = message.get("body", b""), not message.get("more_body", False)
        if self._pieces is None:
            self._body += body
            if last:
                await self._end(answer_frame(self._id, self._status, self._body.decode()))
            return
        for name, data in self._pieces.add(body):
            await _say(self._socket, event_frame(self._id, data, name))
        if last:
            await self._end(end_frame(self._id))


async def _say(socket: WebSocket, text: str) -> None:
    """Send a message, unless the client has left: whoever reads from the socket finds that out."""
    if socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect):
            await socket.send_text(text)
