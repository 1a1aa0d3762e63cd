"""Leases as their key's value."""

import pytest

from proto.rpc.lease import Lease


def test_a_lease_comes_back_as_it_was() -> None:
    lease = Lease("w-1", "worker", 3, {"model": "m", "n": 1}, "host", 42, ("calls:Worker:m",))
    assert Lease.decode("w-1", lease.encode()) == lease


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b"3", b"\xff", b'{"service": "x", "epoch": "", "info": {}}']
)
def test_what_is_no_lease(value: bytes) -> None:
    assert Lease.decode("x", value) is None
