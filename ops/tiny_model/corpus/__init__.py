"""English text written for the project: a seeded generator of chats and plain documents.

Nothing here is taken from elsewhere. The same seed gives the same documents, and a document is
held out or not by its own content, so that no held-out text can also have been trained on.
"""

import random
import zlib
from collections.abc import Iterator
from typing import TypeAlias

from ops.tiny_model.corpus.plain import plain_document
from ops.tiny_model.corpus.talk import Message, conversation

Document: TypeAlias = "list[Message] | str"
"""A chat as its messages, or a plain text."""

__all__ = ["Document", "Message", "documents"]

_HELD_OUT_SHARE = 100


def _is_held_out(document: Document) -> bool:
    return zlib.crc32(repr(document).encode()) % _HELD_OUT_SHARE == 0


def documents(seed: int, held_out: bool = False, long: bool = False) -> Iterator[Document]:
    """Documents without end. `long`: chats of many turns, up to some 2,000 tokens each."""
    rng = random.Random(seed)
    while True:
        chat = rng.random() < 0.8
        document: Document = conversation(rng, long) if chat else plain_document(rng)
        if _is_held_out(document) == held_out:
            yield document
