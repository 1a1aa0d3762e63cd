"""What both ends of a call share: its status, and the messages that wait to be read, in order, each once."""

from dataclasses import dataclass

import grpc

from proto.rpc.mailbox import Mailbox

MAX_MESSAGE_BYTES = 4 * 2**20
"""Largest message, as gRPC's default. The sender checks it, before the message takes anyone's memory."""
MAX_BUFFERED = 4096
MAX_BUFFERED_BYTES = 16 * 2**20
"""Most messages, and most bytes in them, that a call holds for a reader that does not keep up."""

CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


TOO_LARGE = "quire-too-large"
"""Trailing metadata key of a call that ended because of a message's size, in bytes."""


def too_large(size: int) -> Status:
    details = f"Message larger than max ({size} vs. {MAX_MESSAGE_BYTES})"
    return Status(grpc.StatusCode.RESOURCE_EXHAUSTED, details, ((TOO_LARGE, str(size)),))


OVERRUN = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "messages came faster than they were read")
GAP = Status(grpc.StatusCode.UNAVAILABLE, "frames of the call were lost")


class Inflow(Mailbox[bytes]):
    """One direction of a call at its receiver: the messages that wait to be read."""

    __slots__ = ("_bytes", "_expected_before", "expected")

    def __init__(self) -> None:
        super().__init__()
        self.expected = 1
        """Sequence number of the next frame; lower ones were seen, and higher ones mean a gap."""
        self._expected_before = 0
        """`expected` when `quiet` was asked before."""
        self._bytes = 0

    def quiet(self) -> bool:
        """Whether no frame has come since this was asked before. See `probe.py`."""
        before, self._expected_before = self._expected_before, self.expected
        return before == self.expected

    def put(self, body: bytes) -> bool:
        """Add a message; False if there is no room for it."""
        if len(self._items) >= MAX_BUFFERED or (self._bytes and self._bytes + len(body) > MAX_BUFFERED_BYTES):
            return False
        self._bytes += len(body)
        self.add(body)
        return True

    def _take(self) -> bytes:
        body = super()._take()
        self._bytes -= len(body)
        return body
