"""Chunks that are larger than a message may be."""

import pytest

from proto.parts import LARGEST, Joiner, parts_of
from proto.rpc.call import MAX_MESSAGE_BYTES
from proto.tokenizer_pb2 import TextChunk, TextDelta, TokenText


def chunk(size: int) -> TextChunk:
    return TextChunk(deltas=[TextDelta(text="x" * size, logprobs=[TokenText(token_id=3)])])


@pytest.mark.parametrize(
    ("size", "count"), [(0, 1), (LARGEST - 20, 1), (LARGEST, 2), (3 * LARGEST - 50, 3), (3 * LARGEST, 4)]
)
def test_parts_are_the_chunk(size: int, count: int) -> None:
    joiner = Joiner()
    for _ in range(2):
        parts = list(parts_of(chunk(size)))
        assert len(parts) == count
        assert all(part.ByteSize() < MAX_MESSAGE_BYTES // 2 for part in parts)
        *missing, whole = [joiner.add(part) for part in parts]
        assert not any(each is not None for each in missing)
        assert whole == chunk(size)


def test_a_chunk_that_fits_is_sent_as_it_is() -> None:
    small = chunk(9)
    assert next(parts_of(small)) is small
    assert Joiner().add(small) is small
