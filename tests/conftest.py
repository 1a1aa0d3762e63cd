"""What tests of several parts need."""

from collections.abc import Iterator

import pytest

from ops.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The bundled Redis, for the whole run. Tests keep apart by key prefixes of their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url
