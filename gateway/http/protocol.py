"""HTTP/1.1 as uvicorn speaks it, and four things that it leaves out.

- Some clients offer to change the protocol, as Java's does with `Upgrade: h2c` in its first request. A server
  may ignore the offer (RFC 9110, section 7.8). uvicorn's parser, however, takes the bytes after the head for
  the new protocol, and the body would be lost. So the head is parsed again without the offer.
- A WebSocket is counted until it ends, as other connections are. It is opened at `SOCKET_PATH` alone, and not
  behind a request that is being answered; elsewhere the offer is ignored like others.
- A client that speaks HTTP/1.0 knows no chunks (RFC 9112, section 7.1). A stream ends with its connection.
- The head of a request has at most `MAX_HEADERS` headers and `MAX_HEAD_BYTES`. Beyond that the connection
  ends.
"""

import asyncio
from functools import partial
from typing import Any, cast

import httptools

from gateway.errors import HeadTooLarge
from gateway.http.connections import ConnectionLimits, Doors
from gateway.http.head import HeldHead
from gateway.http.timed import Taken, TimedProtocol, Unchunked
from gateway.http.websocket import ParsingTurns, WebSocketProtocol

SOCKET_PATH = b"/v1/stream"
MAX_HEAD_BYTES = 2**16
MAX_HEADERS = 128
MAX_UNPARSED_BYTES = 2**20
"""Bytes that may come before the parser has seen a whole header in them. It is more than one read brings: a
read may begin with the body of the last request."""


class HttpProtocol(TimedProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, turns: ParsingTurns | None = None, **named: Any) -> None:
        """`turns`: shared by all WebSockets of a server."""
        super().__init__(*arguments, **named)
        self._turns = turns
        self.parser = _Parser(self)
        self._head_bytes = self._unparsed_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MAX_UNPARSED_BYTES:
                self.refuse(_too_large())

    def on_message_begin(self) -> None:
        self._head_bytes = self._unparsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self.stop(_too_large())

    def on_headers_complete(self) -> None:
        self.check_wanted()
        if not self.offers_upgrade:
            super().on_headers_complete()
            (Unchunked if self.scope["http_version"] == "1.0" else Taken).take(self.cycle)
            self.cycle.transport = cast(asyncio.Transport, HeldHead(self.cycle, self.loop))

    def on_message_complete(self) -> None:
        if not self.offers_upgrade:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        idle = self.cycle is None or self.cycle.response_complete
        path = self.url.partition(b"?")[0].rstrip(b"/")
        here = idle and path == SOCKET_PATH and self.parser.get_method() == b"GET"
        return here and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        """The connection goes over to the WebSocket. Nothing here waits for it any more."""
        self.scope["method"] = "GET"
        self.end_phases()
        left = partial(self._doors.leave, self._address)
        made = partial(WebSocketProtocol, left=left, write_seconds=self._limits.write, turns=self._turns)
        self.ws_protocol_class = cast(type[asyncio.Protocol], made)
        super().handle_websocket_upgrade()
        if self.flow.write_paused:  # by an answer before, which the client has not taken
            cast(asyncio.Protocol, self.transport.get_protocol()).pause_writing()
        self.parser = None  # type: ignore[assignment]  # as when the connection is closed

    @property
    def offers_upgrade(self) -> bool:
        """The request that was parsed last offers to change the protocol."""
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    @property
    def opens_socket(self) -> bool:
        """That request opens a WebSocket."""
        return self._should_upgrade()

    def head_without_upgrade(self) -> bytes:
        """The head of that request without the offer."""
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(lines))


def protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """What uvicorn makes of each connection of a server, within `limits`."""
    made = partial(HttpProtocol, limits=limits, doors=Doors(limits), turns=ParsingTurns())
    return cast(type[asyncio.Protocol], made)


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"A request's head has at most {MAX_HEADERS} headers and {MAX_HEAD_BYTES} bytes.")


class _Parser(httptools.HttpRequestParser):
    """Parses a request that offers to change the protocol again, without the offer."""

    def __init__(self, protocol: HttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                super().feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._protocol.offers_upgrade:  # CONNECT: this is no proxy
                    raise
                if self._protocol.opens_socket:
                    raise
                data = self._protocol.head_without_upgrade() + data[offer.args[0] :]
