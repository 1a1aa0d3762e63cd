"""Entries and metadata as bytes and back."""

import math
import re
from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError

from proto.rpc.errors import MalformedEntry
from proto.wire_pb2 import OPEN, Entry, Metadatum

Pairs = tuple[tuple[str, str | bytes], ...]
Metadata = Sequence[tuple[str, str | bytes]]

_KEY = re.compile(r"[0-9a-z_.\-]+")


def decode(payload: bytes) -> Entry:
    """An entry from its bytes. Raises `MalformedEntry`."""
    try:
        entry = Entry.FromString(payload)
    except DecodeError:
        raise MalformedEntry("bytes that are not an entry of frames") from None
    if not entry.sender or not entry.epoch:
        raise MalformedEntry("an entry without sender or epoch")
    return entry


def decode_opening(payload: bytes) -> Entry:
    """The beginning of one call, as it lies at a door. Raises `MalformedEntry`."""
    entry = decode(payload)
    if not entry.requests or entry.requests[0].kind != OPEN or entry.responses:
        raise MalformedEntry("an entry at a door that does not open a call")
    if not entry.requests[0].open.method:
        raise MalformedEntry("a call without a method")
    if not math.isfinite(entry.requests[0].open.timeout):
        raise MalformedEntry("a call with a timeout that is not a finite number")
    if any(frame.call != entry.requests[0].call for frame in entry.requests):
        raise MalformedEntry("an entry at a door with more than one call")
    return entry


def to_pairs(metadata: Metadata | None) -> list[Metadatum]:
    """Metadata as it travels. Raises `ValueError` where gRPC would."""
    pairs = []
    for key, value in metadata or ():
        if not _KEY.fullmatch(key):
            raise ValueError(f"metadata was invalid: key {key!r}")
        if isinstance(value, bytes) is not key.endswith("-bin"):
            raise ValueError(
                f"metadata was invalid: keys that end in -bin have bytes and others text, unlike {key!r}"
            )
        pairs.append(Metadatum(key=key, value=value if isinstance(value, bytes) else value.encode()))
    return pairs


def from_pairs(pairs: Iterable[Metadatum]) -> Pairs:
    return tuple(
        (pair.key, pair.value if pair.key.endswith("-bin") else pair.value.decode(errors="replace"))
        for pair in pairs
    )
