"""Arrays on the host, and as they are packed in messages (proto/arrays.proto)."""

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]

_PACKED_INT32 = np.dtype("<i4")


def int32s(packed: bytes) -> Int32s:
    """The numbers of a packed array of int32, without copying them. Read-only.

    The bytes must be a whole number of them, which `proto.arrays.check` sees to.
    """
    return np.frombuffer(packed, _PACKED_INT32).astype(np.int32, copy=False)


def packed_int32s(numbers: NDArray[np.integer]) -> bytes:
    """Numbers as a packed array of int32."""
    return numbers.astype("<i4", copy=False).tobytes()


def packed_float32s(numbers: NDArray[np.floating]) -> bytes:
    """Numbers as a packed array of float32."""
    return numbers.astype("<f4", copy=False).tobytes()
