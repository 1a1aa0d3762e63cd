"""What rank 0 of a worker tells the others, in the order in which it does it itself.

Frames through a pipe: kind (1 byte), length of the body (4 bytes, little-endian), body. When the pipe ends,
so does the rank that reads it.
"""

import struct
from enum import IntEnum
from typing import IO

_HEADER = struct.Struct("<BI")


class Order(IntEnum):
    """The kinds, and their bodies."""

    START = 0
    """JSON: `rank`, the `place` where the ranks meet, `settings`. The first frame."""
    PLAN = 1
    """A StepPlan to begin."""
    FAIL = 2
    """Packed int32: slots whose sequences cannot go on."""
    RESET = 3
    """Nothing: forget everything."""


def write(stream: IO[bytes], order: Order, body: bytes = b"") -> None:
    """Send one frame. Raises `OSError` if nobody reads any more."""
    stream.write(_HEADER.pack(order, len(body)))
    stream.write(body)
    stream.flush()


def read(stream: IO[bytes]) -> tuple[Order, bytes] | None:
    """The next frame; None when the pipe has ended."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    order, length = _HEADER.unpack(header)
    body = stream.read(length)
    return (Order(order), body) if len(body) == length else None
