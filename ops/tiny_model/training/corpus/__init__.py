"""English text written for the project: a seeded generator of chats and plain documents.

Nothing here is taken from elsewhere. The same seed gives the same documents, and a document is
held out or not by its own content, so that no held-out text can also have been trained on.
"""

import random
import zlib
from collections.abc import Iterator
from typing import Literal, TypeAlias

from ops.tiny_model.training.corpus.plain import plain_document
from ops.tiny_model.training.corpus.talk import Message, conversation, small_talk

Document: TypeAlias = "list[Message] | str"
"""A chat as its messages, or a plain text."""

Sort: TypeAlias = Literal["mixed", "long", "small"]

__all__ = ["Document", "Message", "Sort", "documents"]

_HELD_OUT_SHARE = 100


def _is_held_out(document: Document) -> bool:
    return zlib.crc32(repr(document).encode()) % _HELD_OUT_SHARE == 0


def documents(seed: int, held_out: bool = False, sort: Sort = "mixed") -> Iterator[Document]:
    """Documents without end: chats and plain texts, or chats of one sort alone.

    "long": of many turns, up to some 2,000 tokens. "small": questions and short answers, no stories.
    """
    rng = random.Random(seed)
    while True:
        chat = rng.random() < 0.8
        if sort == "small":
            document: Document = small_talk(rng)
        else:
            document = conversation(rng, long=sort == "long") if chat else plain_document(rng)
        if _is_held_out(document) == held_out:
            yield document
