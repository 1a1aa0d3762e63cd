"""What both ends of a call have: frames in order, messages that wait to be read, a deadline."""

import asyncio
from collections import deque
from enum import Enum

from proto.wire_pb2 import Frame, Kind

MAX_MESSAGE_BYTES = 4 * 2**20
"""As gRPC's own default for what is received."""
MAX_BUFFERED = 4096
"""Messages that a call holds for a reader that does not keep up, before it is ended."""


class Arrival(Enum):
    IN_ORDER = "in order"
    REPEATED = "seen before"
    GAP = "frames before it are missing"


class Direction:
    """Frames of one direction of a call, by sequence number."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0

    def arrive(self, sequence: int) -> Arrival:
        if sequence == self.next:
            self.next += 1
            return Arrival.IN_ORDER
        return Arrival.REPEATED if sequence < self.next else Arrival.GAP


class Side:
    """One end of a call: numbers what it sends."""

    __slots__ = ("_from_client", "_sent", "number")

    def __init__(self, number: int, from_client: bool) -> None:
        self.number = number
        self._from_client = from_client
        self._sent = 0

    def frame(self, kind: Kind, body: bytes = b"") -> Frame:
        """The next frame of this end."""
        frame = Frame(
            call=self.number, from_client=self._from_client, sequence=self._sent, kind=kind, body=body
        )
        self._sent += 1
        return frame


class Mailbox:
    """Messages that have come and have not been read. One reader."""

    __slots__ = ("_closed", "_messages", "_reader")

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._closed = False
        self._reader: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    def close(self) -> None:
        """No more will come; what has come can still be read."""
        self._closed = True
        self._wake()

    def clear(self) -> None:
        self._messages.clear()

    async def get(self) -> bytes | None:
        """The next message; None once it is closed and empty."""
        while not self._messages:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
