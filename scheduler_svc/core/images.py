"""Images within prompts, which the core sees as runs of tokens."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """An image within a prompt; see `PromptImage` in images.proto."""

    position: int
    """Of the first token of its run."""
    tokens: int
    """Number of tokens of the run."""
    rows: int
    columns: int
    digest: bytes
    """SHA-256 of its file."""
    name: str
    """Of its file in the image store, which the scheduler hands on unread."""

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.position + self.tokens

    @property
    def content(self) -> bytes:
        """What is seen at which positions, in a fixed number of bytes. Where the file lies is not part of
        it."""
        numbers = (self.position, self.tokens, self.rows, self.columns)
        return self.digest + b"".join(number.to_bytes(4, "little") for number in numbers)


def images_between(images: Sequence[Image], start: int, end: int) -> Iterator[Image]:
    """Those of `images`, which are in order and do not overlap, with tokens from `start` to `end` - 1."""
    for image in images[bisect_right(images, start, key=_end) :]:
        if image.position >= end:
            return
        yield image


def _end(image: Image) -> int:
    return image.end
