"""Entries and metadata as bytes and back."""

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from proto.rpc.errors import MalformedEntry
from proto.wire_pb2 import Entry, Frame, Pair

Metadata = Sequence[tuple[str, str | bytes]]


def decode(payload: bytes | None) -> Entry:
    """An entry as it was written. Raises `MalformedEntry`."""
    if payload is None:
        raise MalformedEntry("not an entry of frames")
    try:
        entry = Entry.FromString(payload)
    except DecodeError:
        raise MalformedEntry("bytes that are no frames") from None
    if not entry.sender or not entry.frames:
        raise MalformedEntry("an entry without sender or frames")
    return entry


def encode(sender: str, epoch: int, frames: Iterable[Frame]) -> bytes:
    return Entry(sender=sender, epoch=epoch, frames=frames).SerializeToString()


def pairs_from(metadata: Metadata | None) -> list[Pair]:
    """Metadata as it travels. Raises `ValueError` for keys that gRPC would not take."""
    pairs = []
    for key, value in metadata or ():
        if not key or key != key.lower() or not key.isascii():
            raise ValueError(f"metadata key {key!r} must be lower-case ASCII")
        if isinstance(value, bytes) != key.endswith("-bin"):
            raise ValueError(f"metadata {key!r}: bytes go with keys that end in -bin, text with others")
        pairs.append(Pair(key=key, value=value if isinstance(value, bytes) else value.encode()))
    return pairs


def metadata_from(pairs: Iterable[Pair]) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(
        (pair.key, pair.value if pair.key.endswith("-bin") else pair.value.decode(errors="replace"))
        for pair in pairs
    )
