"""GET /metrics of one process, for who would rather read each process by itself.

The gateway shows the metrics of all processes, out of Redis, to those who have a key. This page does without
all three. A gateway's has `/metrics/all` as well: all processes, without a key. It knows no other path, and
closes the connection after the answer. `/metrics/models` has one series a model for an endpoint picker.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from ops.runtime.address import cannot_listen
from ops.runtime.exposition import expose, takes_newer
from ops.runtime.metrics import METRICS, Metrics
from ops.runtime.metrics_store import WRITE_SECONDS
from ops.runtime.models_page import expose_models

Read = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Reads the snapshots of processes by their ids."""
Page = tuple[bytes, str]
"""What is shown, and its type of content."""

MOST_BYTES = 16 * 2**10
"""Of a request's head."""
MOST_CONNECTIONS = 8
PATIENCE = 10.0
"""Seconds that a connection may take."""


class MetricsPage:
    """Listens at an address for those who read one process's metrics."""

    def __init__(self, process_id: str, metrics: Metrics = METRICS, read_all: Read | None = None) -> None:
        """`read_all`: reads those of all processes."""
        self._process_id, self._metrics = process_id, metrics
        self._pages: dict[str, Callable[[str], Awaitable[Page]]] = {"/metrics": self._own}
        if read_all is not None:
            self._pages["/metrics/all"] = OfAll(read_all, WRITE_SECONDS).page
            self._pages["/metrics/models"] = OfAll(read_all, WRITE_SECONDS, expose_models).page
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Listen at `host:port`; port 0 takes a free one. Returns the address. Raises `StartError`."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._answer, host.strip("[]"), int(port), limit=MOST_BYTES
            )
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise cannot_listen(f"QUIRE_METRICS_ADDRESS={address}: {reason}", error) from None
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= MOST_CONNECTIONS:
                with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(PATIENCE):
                        writer.write(await self._response(reader))
                        await writer.drain()
        finally:
            self._connections -= 1
            writer.close()

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        """The answer to one request. Raises `IncompleteReadError`."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _packed(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, *_ = [*first.split(" "), "", ""]
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _packed(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _packed(HTTPStatus.METHOD_NOT_ALLOWED)
        fields = (line.partition(":") for line in lines)
        accept = ",".join(value for name, _, value in fields if name.lower() == "accept")
        body, kind = await page(accept)
        return _packed(HTTPStatus.OK, body, kind)

    async def _own(self, accept: str) -> Page:
        return expose({self._process_id: self._metrics.snapshot()}, accept)


class OfAll:
    """The page of all processes, which is made again when they have left new values.

    Some readers ask twenty times a second, and 150 processes take 0.2 s of a processor.
    """

    def __init__(
        self,
        read: Read,
        seconds: float,
        show: Callable[[Mapping[str, bytes], str], Page] = expose,
    ) -> None:
        """`seconds`: time for which a page is kept. `show`: makes it, for what the reader accepts."""
        self._read, self._seconds, self._show = read, seconds, show
        self._kept: dict[bool, Page] = {}
        """By whether the reader accepts the newer format."""
        self._since = -float("inf")
        self._making = asyncio.Lock()

    async def page(self, accept: str) -> Page:
        """The page as it was made last, or anew."""
        newer = takes_newer(accept)
        async with self._making:
            if time.monotonic() - self._since >= self._seconds:
                self._kept, self._since = {}, time.monotonic()
            if newer not in self._kept:
                snapshots = await self._read()
                self._kept[newer] = await asyncio.to_thread(self._show, snapshots, accept)
            return self._kept[newer]


def _packed(status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> bytes:
    body = body or f"{status.phrase}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
