"""Leases as their key's value."""

import pytest

from proto.rpc.lease import MAX_BYTES, Lease, LeaseReader


def test_a_lease_comes_back_as_it_was() -> None:
    lease = Lease("w-1", "worker", 3, {"model": "m", "n": 1}, "host", 42, ("calls:Worker:m",))
    assert Lease.decode("w-1", lease.encode()) == lease


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{}", b"[]", b"3", b"\xff"),
        b'{"service": "x", "epoch": "", "info": {}}',
        b'{"service": "x", "epoch": Infinity, "info": {}}',
        b'{"service": "x", "epoch": 1, "pid": -Infinity, "info": {}}',
        b'{"service": "x", "epoch": 1, "info": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_001,
        b'{"service": "x", "epoch": ' + b"9" * 5000 + b', "info": {}}',
        b'{"service": "x", "epoch": 1, "info": {}}' + b" " * MAX_BYTES,
    ],
    ids=range(11),
)
def test_what_is_no_lease(value: bytes) -> None:
    assert Lease.decode("x", value) is None


def test_doors_are_names() -> None:
    lease = Lease.decode("x", b'{"service": "x", "epoch": 1, "info": {}, "doors": [[1], {}]}')
    assert lease is not None
    assert set(lease.doors) == {"[1]", "{}"}, "a set can hold them"


def test_what_cannot_be_read_is_missing_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader, good = LeaseReader(), Lease("a", "worker", 1)
    for _ in range(3):
        assert reader.read({"a": good.encode(), "b": b"{", "\ud800": b"["}) == {"a": good}
    assert len(caplog.records) == 2
