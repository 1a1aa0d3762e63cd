"""Token ids as the wire carries them: int32, little-endian, packed."""

import struct
from collections.abc import Sequence

ITEM = 4


def pack(ids: Sequence[int]) -> bytes:
    """Ids as bytes. Raises `struct.error` for an id that is not an int32."""
    return struct.pack(f"<{len(ids)}i", *ids)


def unpack(data: bytes) -> tuple[int, ...]:
    """Bytes as ids. Raises `struct.error` if their number is not a multiple of 4."""
    return struct.unpack(f"<{len(data) // ITEM}i", data)


def unpack_floats(data: bytes) -> tuple[float, ...]:
    """Bytes as float32 numbers, little-endian. Raises `struct.error` as `unpack` does."""
    return struct.unpack(f"<{len(data) // ITEM}f", data)
