"""HTTP/1.1 as uvicorn speaks it, with an end for everything that waits for the client.

A connection is always in one phase, and each phase that the client could draw out has a time:

    HEAD ──▶ BODY ──▶ ANSWER ──▶ IDLE ──▶ HEAD …
              └─────────────────▶ LINGER ──▶ IDLE …      answered before the whole body was there

ANSWER ends with the answer's own deadline. Beside it runs the time for writing: a client that does not read
its answer is cut off. From every phase the connection may be closed (CLOSING); it must be gone within the
time for writing, too.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import BadRequest, GatewayError, Overloaded, TooSlow, Unavailable
from gateway.http.connections import PROBED, ConnectionLimits, Doors

MAX_PIPELINED = 128
"""Requests that a connection may have sent before they are answered. A client that waits sends one."""

_DEFAULT = ConnectionLimits()


class Phase(enum.Enum):
    HEAD, BODY, ANSWER, LINGER, IDLE, CLOSING = range(6)


class Taken(RequestResponseCycle):
    """A request that is under way until its client has taken the answer, but for what the system buffers. So
    what is held for it counts as long as the answer takes memory."""

    @classmethod
    def take(cls, cycle: RequestResponseCycle) -> None:
        """Make a request that has not been answered yet one of these."""
        cycle.__class__ = cls

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.response_complete and self.flow.write_paused:
            await self.flow.drain()


class Unchunked(Taken):
    """A request whose answer is neither chunked nor held to its length. Its connection ends with it."""

    @classmethod
    def take(cls, cycle: RequestResponseCycle) -> None:
        super().take(cycle)
        cycle.chunked_encoding = False

    async def send(self, message: Any) -> None:
        self.expected_content_length = len(message.get("body", b""))  # this part is all that is to come
        await super().send(message)


class TimedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        *arguments: Any,
        limits: ConnectionLimits = _DEFAULT,
        doors: Doors | None = None,
        **named: Any,
    ) -> None:
        """`doors`: the counts that all connections of a server share."""
        super().__init__(*arguments, **named)
        self._limits = limits
        self._ends: dict[Phase, tuple[float, Callable[[], None]]] = {
            Phase.HEAD: (limits.head, self._late),
            Phase.BODY: (limits.body, self._body_late),
            Phase.ANSWER: (0, self._cut),
            Phase.LINGER: (limits.linger, self._cut),
            Phase.IDLE: (limits.idle, self.timeout_keep_alive_handler),
            Phase.CLOSING: (limits.write, self._cut),
        }
        """How long each phase may last, and what happens then."""
        self._doors = doors or Doors(limits)
        self._only_probe: GatewayError | None = None
        """Why the connection is refused, unless it asks how the gateway is."""
        self._phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._serving: RequestResponseCycle | None = None
        """The request that was begun last. Those behind it in the pipeline wait."""
        self._in_head = self._in_body = False
        """Where the parser is in the newest request."""
        self._beyond: GatewayError | None = None
        """The limit that stopped the parser."""
        self._body_began = 0.0
        self._body_bytes = 0

    # --- the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        refusal = self._doors.enter(self._address)
        if isinstance(refusal, Unavailable):
            self._let_probe(refusal)
        elif refusal is not None:
            self.refuse(refusal)
        else:
            self._watch()

    def _let_probe(self, refusal: GatewayError) -> None:
        refuse = partial(self.refuse, refusal)
        self._only_probe = refusal
        self._ends[Phase.HEAD] = (self._limits.probe, refuse)
        self._watch()
        self._doors.let_probe(self, refuse)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forsake()
        self._doors.leave(self._address)
        self._doors.end_probe(self)
        self.end_phases()

    def end_phases(self) -> None:
        """Wait for nothing any more."""
        self._set(None, 0, self._late)
        self._unset_keepalive_if_required()
        self._stop_write_timer()

    @property
    def _answering(self) -> bool:
        """An answer has begun and not ended."""
        serving = self._serving
        return serving is not None and serving.response_started and not serving.response_complete

    @property
    def _address(self) -> str | None:
        return self.client[0] if self.client else None

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch()

    def refuse(self, error: GatewayError) -> None:
        """Answer a request that cannot be read, and close the connection.

        If another answer has begun, its connection is closed without a word: that would become a part of it.
        """
        if self.transport.is_closing():
            return
        if self._answering:
            self.transport.close()
        else:
            self._close_with(error)
        self._forsake()
        self._watch()

    def _close_with(self, error: GatewayError) -> None:
        body = error.body().encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        lines = [STATUS_LINE[error.status], b"connection: close\r\n"]
        for name, value in headers.items():
            lines.append(f"{name}: {value}\r\n".encode())
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        self.transport.close()

    def _forsake(self) -> None:
        """Tell the request that is answered that its client has left. uvicorn tells the newest one alone."""
        serving = self._serving
        if serving is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """The parser has stopped. `msg`: uvicorn's words, if none of our limits was the reason."""
        self.refuse(self._beyond or BadRequest(msg, code="invalid_http"))

    def stop(self, error: GatewayError) -> NoReturn:
        """For callbacks of the parser: the request is beyond a limit. The parser stops."""
        self._beyond = error
        raise error

    # --- requests ---

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._body_began, self._body_bytes = time.monotonic(), 0
        super().on_headers_complete()
        if self._only_probe is not None:
            self._doors.end_probe(self)
            self.cycle.keep_alive = False
        if len(self.pipeline) > MAX_PIPELINED:
            self.stop(Overloaded("Too many requests are under way on this connection."))

    def check_wanted(self) -> None:
        """For callbacks of the parser: it stops if the request whose head it has read must not be made."""
        if self._only_probe is not None and self.url.partition(b"?")[0] not in PROBED:
            self.stop(self._only_probe)

    def on_body(self, body: bytes) -> None:
        # Of the body alone: a client could send any number of bytes between the chunks of a body.
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        if cycle is self.cycle:
            self._body_began = time.monotonic()  # until now its body was not read
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self._served)
        self.tasks.add(task)

    def _served(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    # --- phases ---

    def _watch(self) -> None:
        """Note the phase that the connection is in, and set its time if it has just begun."""
        phase = self._found()
        if phase is self._phase or self.parser is None:
            return
        self._set(phase, *self._ends[phase])

    def _found(self) -> Phase:
        serving = self._serving
        if self.transport.is_closing():
            return Phase.CLOSING
        if serving is None or (serving.response_complete and self._in_head):
            return Phase.HEAD
        newest = serving is self.cycle
        if serving.response_complete:
            return Phase.LINGER if newest and self._in_body else Phase.IDLE
        return Phase.BODY if newest and self._in_body else Phase.ANSWER

    def _set(self, phase: Phase | None, seconds: float, end: Callable[[], None]) -> None:
        """Begin a phase that `end` ends after `seconds`; 0: it has no time of its own."""
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, end) if seconds else None

    def _late(self) -> None:
        self.refuse(TooSlow("The head of the request took too long."))

    def _body_late(self) -> None:
        given = self._limits.body + self._body_bytes / self._limits.body_rate
        left = self._body_began + given - time.monotonic()
        if left > 0:
            self._set(Phase.BODY, left, self._body_late)
        elif self._serving is not None and self._serving.response_started:
            self._cut()
        else:
            self.refuse(TooSlow("The body of the request took too long."))

    def _cut(self) -> None:
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """The time of IDLE is over. uvicorn's own timer calls this, too; a client's CRLF stops that one."""
        super().timeout_keep_alive_handler()
        self._watch()

    # --- writing ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self._limits.write, self._cut)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
