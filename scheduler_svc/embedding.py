"""Embeddings of fewer numbers than the model gives."""

import sys
from array import array
from math import hypot


def first_dimensions(embedding: bytes, count: int) -> bytes:
    """The first `count` numbers of float32[], little-endian, made of length 1 again; 0: all, as they are.

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
