"""HTTP/1.1 as uvicorn speaks it, and three things that it leaves out.

- Some clients offer to change the protocol, as Java's does with `Upgrade: h2c` in its first request. A server
  may ignore the offer (RFC 9110, section 7.8). uvicorn's parser, however, takes the bytes after the head for
  the new protocol, and the body would be lost. So the head is parsed again without the offer.
- The head of a request is at most `MAX_HEAD_BYTES` long. Beyond that the connection ends.
- HEAD is answered like GET, without the body (RFC 9110, section 9.3.2). Load balancers use it.
"""

from typing import Any

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**20
"""Far more than clients send, and more than one read brings: it may include the body of the last request."""


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.parser = _Parser(self)
        self._in_head = False
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if not self.offers_upgrade:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.offers_upgrade:
            super().on_message_complete()

    @property
    def offers_upgrade(self) -> bool:
        """The request that was parsed last offers to change the protocol."""
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def head_without_upgrade(self) -> bytes:
        """The head of that request without the offer."""
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(lines))


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
                data = self._protocol.head_without_upgrade() + data[offer.args[0] :]


class HeadAsGet:
    """Middleware: routes a HEAD request as GET. The server leaves out the body, and keeps its length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
