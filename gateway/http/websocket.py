"""WebSockets as uvicorn speaks them, with bounds on what a client can fill or draw out.

- A client that does not take what is written within the time for writing is cut off. Until then nothing more
  of it is read: each ping would be one more answer to keep.
- What has come is parsed piece by piece, and only while the application waits for a message. In the queue a
  message of a few bytes takes hundreds.
- All connections together parse for `TURN_SECONDS` in each turn of the event loop, one after the other.
- A client that has shown no valid API key, where keys are needed, may send messages of `KEYLESS_BYTES`: a key
  fits. Large ones of other clients count as bodies of requests do.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from gateway.errors import Overloaded
from gateway.http.body_memory import Held

KEYLESS_BYTES = 2**12
"""Bytes of a message of a client that has shown no valid key yet. They do not count."""
SMALL_BYTES = 2**16
"""Bytes of a message that do not count."""
PIECE_BYTES = 2**8
"""Bytes that are parsed at once: up to 43 frames."""
TURN_SECONDS = 0.001
"""Time for all parsing in one turn of the event loop. What has come at once may be 40,000 frames."""


class ParsingTurns:
    """The time to parse, which all WebSockets of a server share: one that floods has less of it, not others.

    A connection parses at once while nobody waits and there is time left in this turn of the event loop.
    Otherwise it waits behind those that wait already.
    """

    def __init__(self) -> None:
        self._waiting: dict[WebSocketProtocol, None] = {}
        self._end = 0.0
        self._next: asyncio.Handle | None = None

    def ask(self, connection: "WebSocketProtocol") -> None:
        """Let the connection parse what has come, now or later."""
        self._waiting.setdefault(connection)
        if self._next is None:
            self._begin(connection.loop)
        elif len(self._waiting) == 1 and time.monotonic() < self._end:
            self._parse_first()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._end = time.monotonic() + TURN_SECONDS
        self._next = loop.call_soon(self._in_turn, loop)
        self._parse_first()
        while self._waiting and time.monotonic() < self._end:
            self._parse_first()

    def _parse_first(self) -> None:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        if connection.parse(self._end):
            self._waiting.setdefault(connection)

    def _in_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = None
        if self._waiting:
            self._begin(loop)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket.

    To the application a client that breaks the protocol is one that has left. uvicorn takes this for the
    application's fault, or for its own, and logs tracebacks.
    """

    def __init__(
        self,
        *arguments: Any,
        left: Callable[[], None] = lambda: None,
        write_seconds: float = 60.0,
        turns: ParsingTurns | None = None,
        **named: Any,
    ) -> None:
        """`left`: called when the connection is closed. `write_seconds`: time in which the client must take
        what waits to be written. `turns`: shared by all connections of the server."""
        super().__init__(*arguments, **named)
        self.app_state = {**self.app_state, "hold_messages": self.hold_messages}
        self._left = left
        self._write_seconds = write_seconds
        self._turns = turns or ParsingTurns()
        self._write_timer: asyncio.TimerHandle | None = None
        self._over = False
        """The application has ended."""
        self._unread = bytearray()
        """What has come and is not parsed yet."""
        self._wanted = True
        """The application waits for a message, or has not taken any yet."""
        self._held: Held | None = None

    def hold_messages(self, held: Held) -> None:
        """For the application: the client may send large messages from now on. `held` counts each one until
        the application asks for the next."""
        self._release()
        self._held = held

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_write_timer()
        self._release()
        self._unread.clear()
        self._left()

    # --- reading ---

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._go_on()
        self._watch_writing()

    async def receive(self) -> Any:
        if self.queue.empty():
            self._wanted = True
            self._count(self._unfinished)
            self._go_on()
        if not self.queue.empty():
            await asyncio.sleep(0)  # others have their turn before each message
        message = await super().receive()
        self._wanted = False
        self._pace()
        return message

    @property
    def _may_go_on(self) -> bool:
        asked = self._wanted and not self.read_paused  # uvicorn pauses when there is a message
        return self.writable.is_set() and (asked or self.close_sent) and not self.transport.is_closing()

    def _go_on(self) -> None:
        """Parse what has come, in turns with other connections."""
        if self._unread and self._may_go_on:
            self._turns.ask(self)
        self._pace()

    def parse(self, end: float) -> bool:
        """Parse what has come until `end`, at least a piece of it. Whether there is more to parse.

        `end`: on the clock `time.monotonic`.
        """
        while self._unread and self._may_go_on:
            piece = bytes(self._unread[:PIECE_BYTES])
            del self._unread[:PIECE_BYTES]
            super().data_received(piece)
            if not self.read_paused:
                self._count(self._unfinished)
            if time.monotonic() >= end:
                break
        self._pace()
        return bool(self._unread) and self._may_go_on

    def _pace(self) -> None:
        """Read no more than is parsed."""
        if self._may_go_on and not self._unread:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    @property
    def _unfinished(self) -> int:
        """Bytes that have come of a message that has not ended."""
        return len(self.conn.reader.buffer) + sum(map(len, self.frames))

    def _count(self, size: int) -> None:
        """Count the bytes of a message, or of a part of one."""
        self._release()
        if size <= KEYLESS_BYTES or self.disconnected:
            return
        if self._held is None:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "a large message needs an API key")
            return
        if size <= SMALL_BYTES:
            return
        try:
            self._held.grow(size)
        except Overloaded:
            self._fail(CloseCode.TRY_AGAIN_LATER, "no memory for this message")

    def handle_cont(self, event: Frame) -> None:
        # In one piece: a list of small pieces takes many times their bytes, and one of empty ones has no end.
        whole = self.frames[0] if isinstance(self.frames[0], bytearray) else bytearray(self.frames[0])
        whole += event.data
        self.frames = cast(list[bytes], [whole])
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        self._count(sum(map(len, self.frames)))
        if self.curr_msg_data_type == "text" and not _is_utf8(self.frames):
            self._fail(CloseCode.INVALID_DATA, "invalid UTF-8")
        if not self.transport.is_closing():
            super().send_receive_event_to_app()
        self.frames = []

    def _fail(self, code: CloseCode, reason: str) -> None:
        if not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
            return
        # The socket was not open yet, so that no frame says why it is closed.
        self.queue.put_nowait({"type": "websocket.disconnect", "code": int(CloseCode.ABNORMAL_CLOSURE)})
        self.close_sent = True
        self.transport.close()

    # --- writing ---

    async def send(self, message: Any) -> None:
        if self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        await self.writable.wait()  # what is held for a message counts until the client has taken it
        if self.close_sent:
            self._go_on()  # to the client's answer
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused by an answer of HTTP, which uvicorn takes for none

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()
        self._watch_writing()
        self._go_on()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        super().on_task_complete(task)
        self._over = True
        self._watch_writing()

    def keepalive_timeout(self) -> None:
        if (self._unread or not self._may_go_on) and not self.transport.is_closing():
            # Its answer to the ping may wait to be parsed, or to be read.
            self.pong_timer = self.loop.call_later(self.ping_timeout or 0, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._watch_writing()

    def _watch_writing(self) -> None:
        """Begin the time for writing, if the client has to take something."""
        waits = self._over or self.transport.is_closing() or not self.writable.is_set()
        if waits and self._write_timer is None and not self.disconnected:
            self._write_timer = self.loop.call_later(self._write_seconds, self.transport.abort)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _is_utf8(pieces: list[bytes]) -> bool:
    try:
        b"".join(pieces).decode()
    except UnicodeDecodeError:
        return False
    return True
