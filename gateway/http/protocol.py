"""HTTP/1.1 as uvicorn speaks it, and two things besides that clients do.

- Some offer to go on in another protocol, as Java's does with `Upgrade: h2c` in its first request. A server
  that does not want to answers as if nothing had been offered (RFC 9110, section 7.8). The parser, however,
  takes what follows the head for that protocol, and the body would be lost: so the head is read again without
  the offer.
- A head may go on for ever. Beyond `MAX_HEAD_BYTES` the connection ends.
"""

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 2**20
"""Far more than any client sends, and than comes with one read, in which a body may precede the head."""


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
        if not self.offered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.offered:
            super().on_message_complete()

    @property
    def offered(self) -> bool:
        """Whether the request that has been parsed last would rather go on in another protocol."""
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def head_without_offer(self) -> bytes:
        """The head of that request as if it had not said so."""
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        return b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(lines))


class _Parser(httptools.HttpRequestParser):
    """Begins a request anew, without the offer, that would go on in another protocol."""

    def __init__(self, protocol: HttpProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                super().feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._protocol.offered:  # a CONNECT: nobody here goes on for others
                    raise
                data = self._protocol.head_without_offer() + data[offer.args[0] :]
