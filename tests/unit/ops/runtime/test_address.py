"""Which addresses are this machine's alone, and URLs as they may be shown."""

import pytest

from ops.runtime.address import is_loopback, without_password


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "203.0.113.1", "2001:db8::1", "no.such.invalid"]
)
def test_anything_else(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
        ("redis://user:sec@ret/@host:1/0", "redis://user:***@host:1/0"),
        ("unix://user:secret@/run/redis.sock", "unix://user:***@/run/redis.sock"),
        ("localhost:6379", "localhost:6379"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
