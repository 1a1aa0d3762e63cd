"""GET /metrics of one process, for who would rather read each process by itself.

The gateway shows the metrics of all processes, out of Redis. This page does without both. It knows one path,
and closes the connection after the answer.
"""

import asyncio
import contextlib
from http import HTTPStatus

from ops.runtime.errors import StartError
from ops.runtime.exposition import expose
from ops.runtime.metrics import METRICS, Metrics

MOST_BYTES = 16 * 2**10
"""Of a request's head."""
MOST_CONNECTIONS = 8
PATIENCE = 10.0
"""Seconds that a connection may take."""


class MetricsPage:
    """Listens at an address for those who read one process's metrics."""

    def __init__(self, process_id: str, metrics: Metrics = METRICS) -> None:
        self._process_id, self._metrics = process_id, metrics
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
            raise StartError(f"QUIRE_METRICS_ADDRESS={address}: {reason}") from None
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
        if target.partition("?")[0] != "/metrics":
            return _packed(HTTPStatus.NOT_FOUND)
        if method != "GET":
            return _packed(HTTPStatus.METHOD_NOT_ALLOWED)
        fields = (line.partition(":") for line in lines)
        accept = ",".join(value for name, _, value in fields if name.lower() == "accept")
        body, kind = expose({self._process_id: self._metrics.snapshot()}, accept)
        return _packed(HTTPStatus.OK, body, kind)


def _packed(status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> bytes:
    body = body or f"{status.phrase}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
