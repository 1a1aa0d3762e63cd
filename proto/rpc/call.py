"""What both ends of a call have: messages that come in order, once each, and wait to be read."""

import asyncio
from collections import deque
from dataclasses import dataclass

import grpc

MAX_MESSAGE_BYTES = 4 * 2**20
"""Of one message; as gRPC's own default. Checked where it is sent, before it burdens anyone."""
MAX_BUFFERED = 4096
MAX_BUFFERED_BYTES = 16 * 2**20
"""Messages, or bytes in them, that a call holds for a reader that does not keep up."""

CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


def too_large(size: int) -> Status:
    details = f"Message larger than max ({size} vs. {MAX_MESSAGE_BYTES})"
    return Status(grpc.StatusCode.RESOURCE_EXHAUSTED, details)


OVERRUN = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "messages came faster than they were read")
GAP = Status(grpc.StatusCode.UNAVAILABLE, "frames of the call were lost")


class Inflow:
    """One direction of a call at its receiver. One reader."""

    __slots__ = ("_bodies", "_bytes", "_closed", "_reader", "expected")

    def __init__(self) -> None:
        self.expected = 1
        """Sequence number of the next frame; lower ones were seen, and higher ones mean a gap."""
        self._bodies: deque[bytes] = deque()
        self._bytes = 0
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, body: bytes) -> bool:
        """Add a message; False if there is no room for it."""
        if len(self._bodies) >= MAX_BUFFERED or (
            self._bytes and self._bytes + len(body) > MAX_BUFFERED_BYTES
        ):
            return False
        self._bodies.append(body)
        self._bytes += len(body)
        if self._reader is not None:
            self._wake()
        return True

    def close(self, discard: bool = False) -> None:
        """No more will come. What has come can still be read, unless it is discarded."""
        self._closed = True
        if discard:
            self._bodies.clear()
        if self._reader is not None:
            self._wake()

    async def get(self) -> bytes | None:
        """The next message; None once it is closed and empty."""
        while not self._bodies:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        body = self._bodies.popleft()
        self._bytes -= len(body)
        return body

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
