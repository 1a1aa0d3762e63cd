"""Embeddings with fewer dimensions than the model's."""

from math import hypot

from proto import arrays


def first_dimensions(embedding: bytes, count: int) -> bytes:
    """The first `count` dimensions, scaled to length 1 again; float32[], little-endian. 0: all, unchanged.

    Models are trained for this (Kusupati et al. 2022, "Matryoshka Representation Learning").
    """
    if not 0 < count < len(embedding) // 4:
        return embedding
    numbers = arrays.unpack(embedding[: 4 * count], arrays.FLOAT32)
    length = hypot(*numbers) or 1.0
    return arrays.pack([number / length for number in numbers], arrays.FLOAT32)
