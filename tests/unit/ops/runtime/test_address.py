"""Which addresses are this machine's alone."""

import pytest

from ops.runtime.address import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "203.0.113.1", "2001:db8::1", "no.such.invalid"]
)
def test_anything_else(host: str) -> None:
    assert not is_loopback(host)
