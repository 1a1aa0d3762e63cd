"""Chunks of text that are larger than a message may be, cut into parts and put together again."""

from collections.abc import Iterator

from proto.tokenizer_pb2 import TextChunk

LARGEST = 2**20
"""Bytes of a part, and of a chunk that is not cut. A message may have four times as many."""


def parts_of(chunk: TextChunk) -> Iterator[TextChunk]:
    """The messages that carry a chunk: itself, or its parts."""
    if chunk.ByteSize() <= LARGEST:
        yield chunk
        return
    packed = chunk.SerializeToString()
    count = -(-len(packed) // LARGEST)
    for number in range(count):
        part = packed[number * LARGEST : (number + 1) * LARGEST]
        yield TextChunk(part=part, parts_left=count - 1 - number)


class Joiner:
    """The receiver's end of one call: makes whole chunks of what comes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, message: TextChunk) -> TextChunk | None:
        """The chunk that this message is, or whose last part it is; None while parts are missing."""
        if not message.part:
            return message
        self._parts.append(message.part)
        if message.parts_left:
            return None
        whole = TextChunk.FromString(b"".join(self._parts))
        self._parts.clear()
        return whole
