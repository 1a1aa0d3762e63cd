"""What a code over an entry lets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.rpc.errors import MalformedEntry
from proto.rpc.seal import CODE_BYTES, Seal

OURS, THEIRS = Seal(b"ours"), Seal(b"theirs")


@given(st.text(), st.binary())
def test_an_entry_comes_back_as_it_was(stream: str, entry: bytes) -> None:
    assert OURS.open(stream, OURS.close(stream, entry)) == entry
    assert len(OURS.close(stream, entry)) == len(entry) + CODE_BYTES


@given(st.binary(max_size=100), st.data())
def test_a_changed_bit_is_found(entry: bytes, data: st.DataObject) -> None:
    payload = bytearray(OURS.close("inbox:a", entry))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(MalformedEntry, match="secret"):
        OURS.open("inbox:a", bytes(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"short",
        b"entry",
        THEIRS.close("inbox:a", b"entry"),
        OURS.close("inbox:b", b"entry"),
        OURS.close("inbox:", b"a\0entry"),
        OURS.close("inbox:a", b"entry")[:-1],
        OURS.close("inbox:a", b"entry") + b"x",
    ],
)
def test_what_was_not_written_to_this_stream_with_this_secret_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedEntry, match="secret"):
        OURS.open("inbox:a", payload)


def test_without_a_secret_entries_are_as_they_are() -> None:
    assert Seal().close("inbox:a", b"entry") == b"entry"
    assert Seal().open("inbox:a", b"entry") == b"entry"
    assert Seal().open("inbox:a", None) is None
