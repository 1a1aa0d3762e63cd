"""Replies of Redis of any size, cut into pieces of any size."""

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.rpc import bounded_reader
from proto.rpc.bounded_reader import LATER, TOO_LARGE, TOO_MANY, BoundedReader, size_of

LIMIT, HELD, SMALL, TINY, ELEMENTS = 100, 400, 50, 10, 20


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_reader, "MAX_ENTRY_BYTES", LIMIT)
    monkeypatch.setattr(bounded_reader, "MAX_HELD", HELD)
    monkeypatch.setattr(bounded_reader, "SMALL", SMALL)
    monkeypatch.setattr(bounded_reader, "TINY", TINY)
    monkeypatch.setattr(bounded_reader, "MAX_ELEMENTS", ELEMENTS)


class Error(str):
    """An error as a reply."""

    __slots__ = ()


def encoded(reply: Any) -> bytes:
    """A reply as Redis sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, Error):
        return f"-{reply}\r\n".encode()
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(encoded, reply)))


def plain(reply: Any) -> Any:
    """A reply as it was read, with errors that can be compared."""
    if isinstance(reply, hiredis.ReplyError):
        return Error(reply)
    return [plain(one) for one in reply] if isinstance(reply, list) else reply


def bounded(reply: Any, whole: bool = True) -> Any:
    """What is to be read of a reply."""
    if isinstance(reply, bytes) and len(reply) > LIMIT:
        return Error(f"{TOO_LARGE} {len(reply)}")
    if not isinstance(reply, list):
        return reply
    if len(reply) > ELEMENTS and not whole:
        return Error(f"{TOO_MANY} {len(reply)}")
    return [bounded(one, whole=False) for one in reply]


def read(reader: BoundedReader, replies: list[Any], cuts: list[int]) -> tuple[list[Any], int]:
    """The replies as they are read, if they come in pieces of these sizes; the most bytes that were held."""
    data, at, found, most, turn = b"".join(map(encoded, replies)), 0, [], 0, 0
    while at < len(data):
        piece = data[at : at + cuts[turn % len(cuts)]]
        at, turn = at + len(piece), turn + 1
        reader.feed(piece)
        while (reply := reader.gets()) is not False:
            found.append(plain(reply))
        if len(found) < len(replies) or reader.inside:
            reader.paused(piece, len(found) == len(replies))
        most = max(most, reader._reader.len())
    assert not reader.inside
    return found, most


REPLIES = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-9, 999),
        st.sampled_from([Error("ERR no"), Error("12")]),
        st.binary(max_size=300),
        st.sampled_from([b"\r\n", b"$500\r\n", b"x" * 100, b"x" * 101, b"*3\r\n" * 60]),
    ),
    lambda parts: st.lists(parts, max_size=30),
    max_leaves=25,
)


@given(st.lists(REPLIES, min_size=1, max_size=5), st.lists(st.integers(1, 19), min_size=1, max_size=9))
def test_replies_are_read_as_hiredis_reads_them_but_for_what_is_too_large(
    replies: list[Any], cuts: list[int]
) -> None:
    # Pieces are smaller than what is too large: Redis's come as the socket has them, 256 KiB at most.
    bounded_reader.MAX_HELD = 10**9
    found, _ = read(BoundedReader(), replies, cuts)
    assert found == [bounded(reply) for reply in replies]


@given(st.lists(REPLIES, min_size=1, max_size=5), st.lists(st.integers(1, 2000), min_size=1, max_size=9))
def test_what_is_small_is_read_in_pieces_of_any_size(replies: list[Any], cuts: list[int]) -> None:
    small = [reply for reply in replies if bounded(reply) == reply and len(encoded(reply)) < HELD // 5]
    found, _ = read(BoundedReader(), small, cuts)
    assert found == small


@pytest.mark.parametrize("size", [1, 7, 16, 90])
def test_of_what_is_too_large_nothing_is_held(size: int) -> None:
    entry = [[b"inbox", [[b"1-0", [b"e", b"x" * 100_000]], [b"2-0", [b"e", b"y"]]]]]
    found, most = read(BoundedReader(), [entry, b"next"], [size])
    assert found == [bounded(entry), b"next"]
    assert most < 300


@pytest.mark.parametrize("size", [1, 7, 16])
def test_of_a_list_that_is_too_long_nothing_is_held(size: int) -> None:
    entry = [[b"1-0", [b"f", b"v"] * 20_000, [b"deep", [b"er"]]], [b"2-0", [b"e", b"y"]]]
    found, most = read(BoundedReader(), [entry, b"next"], [size])
    assert found == [bounded(entry), b"next"]
    assert most < 300


def test_what_is_too_much_together_is_read_later() -> None:
    entries = [[b"%d-0" % number, [b"e", b"x" * 90]] for number in range(1000)]
    reader = BoundedReader()
    found, _ = read(reader, [entries], [16])
    sizes = [size_of(hiredis.ReplyError(fields[1])) for _, fields in found[0] if isinstance(fields[1], Error)]
    assert found[0][:3] == entries[:3]
    assert set(sizes) == {90}
    assert found[0][-1] == [b"999-0", [b"e", Error(f"{LATER} 90")]]
    assert len(sizes) > 990
    reader.held = 0  # the next pipeline
    assert read(reader, [entries[999]], [16])[0] == [entries[999]]


def test_of_very_much_that_is_small_no_more_is_held() -> None:
    """As of an entry that has a thousand fields of 64 KiB."""
    entries = [[b"%d-0" % number, [b"f", b"x" * 40] * 9] for number in range(50)]
    reader = BoundedReader()
    found, _ = read(reader, [entries], [16])
    held = [len(one) for _, fields in found[0] for one in fields if isinstance(one, bytes)]
    assert 2 * HELD - 40 < sum(held) <= 2 * HELD + 50 * 9
    assert [entry_id for entry_id, _ in found[0]] == [entry_id for entry_id, _ in entries]
    assert [fields for _, fields in found[0][:2]] == [fields for _, fields in entries[:2]]


def test_only_errors_of_this_reader_have_a_size() -> None:
    assert size_of(hiredis.ReplyError(f"{TOO_LARGE} 5")) == 5
    assert [size_of(one) for one in (b"TOOLARGE 5", None, hiredis.ReplyError("ERR 5"))] == [0, 0, 0]
