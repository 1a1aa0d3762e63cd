"""Entries and metadata as bytes and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.rpc.bus import MAX_ENTRY_BYTES, Received
from proto.rpc.errors import MalformedEntry
from proto.rpc.frames import decode, decode_opening, from_pairs, to_pairs
from proto.wire_pb2 import MESSAGE, OPEN, Entry

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
KEYS = st.from_regex(r"[0-9a-z_.\-]{1,10}", fullmatch=True).filter(lambda key: not key.endswith("-bin"))


@given(
    st.lists(st.one_of(st.tuples(KEYS, TEXT), st.tuples(KEYS.map("{}-bin".format), st.binary(max_size=20))))
)
def test_metadata_comes_back_as_it_was(pairs: list[tuple[str, str | bytes]]) -> None:
    assert from_pairs(to_pairs(pairs)) == tuple(pairs)


@pytest.mark.parametrize(
    "pair", [("", "x"), ("Upper", "x"), ("a b", "x"), ("a-bin", "text"), ("a", b"bytes")]
)
def test_metadata_that_grpc_would_not_take(pair: tuple[str, str | bytes]) -> None:
    with pytest.raises(ValueError, match="metadata was invalid"):
        to_pairs([pair])


def test_no_metadata() -> None:
    assert to_pairs(None) == []
    assert from_pairs([]) == ()


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_malformed(payload: bytes) -> None:
    try:
        entry = decode(payload)
    except MalformedEntry:
        return
    assert entry.sender
    assert entry.epoch


def opening() -> Entry:
    entry = Entry(sender="a-1", epoch=1)
    frame = entry.requests.add(call=1, seq=1, kind=OPEN)
    frame.open.method = "/x.Y/Z"
    entry.requests.add(call=1, seq=2, kind=MESSAGE, body=b"x")
    return entry


def test_an_opening() -> None:
    assert decode_opening(opening().SerializeToString()) == opening()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda entry: entry.ClearField("sender"), "without sender"),
        (lambda entry: entry.ClearField("epoch"), "without sender or epoch"),
        (lambda entry: entry.ClearField("requests"), "does not open a call"),
        (lambda entry: entry.requests.pop(0), "does not open a call"),
        (lambda entry: entry.responses.add(), "does not open a call"),
        (lambda entry: entry.requests[0].ClearField("open"), "without a method"),
        (lambda entry: setattr(entry.requests[0].open, "timeout", float("nan")), "timeout"),
        (lambda entry: setattr(entry.requests[1], "call", 2), "more than one call"),
    ],
)
def test_what_opens_no_call(change: object, reason: str) -> None:
    entry = opening()
    change(entry)  # type: ignore[operator]
    with pytest.raises(MalformedEntry, match=reason):
        decode_opening(entry.SerializeToString())


def test_an_entry_without_our_field_or_with_too_much_in_it() -> None:
    with pytest.raises(MalformedEntry, match="not an entry"):
        Received("1-0", None).content()
    with pytest.raises(MalformedEntry, match=f"of {MAX_ENTRY_BYTES + 1} bytes"):
        Received("1-0", None, size=MAX_ENTRY_BYTES + 1).content()
