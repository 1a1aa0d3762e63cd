"""Embeddings with fewer dimensions than the model's."""

import sys
from array import array
from math import hypot


def first_dimensions(embedding: bytes, count: int) -> bytes:
    """The first `count` dimensions, scaled to length 1 again; float32[], little-endian. 0: all, unchanged.

    Models are trained for this (Kusupati et al. 2022, "Matryoshka Representation Learning").
    """
    if not 0 < count < len(embedding) // 4:
        return embedding
    numbers = array("f")
    numbers.frombytes(embedding[: 4 * count])
    if sys.byteorder == "big":
        numbers.byteswap()
    length = hypot(*numbers) or 1.0
    shortened = array("f", [number / length for number in numbers])
    if sys.byteorder == "big":
        shortened.byteswap()
    return shortened.tobytes()
