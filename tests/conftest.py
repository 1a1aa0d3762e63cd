"""What tests of several parts need."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ops.redis_server import RedisServer

if not Path("/dev/nvidiactl").exists():
    # Without a GPU its kernels run in Triton's interpreter; Triton asks for it when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples each time, unless others are asked for.
settings.register_profile("same", derandomize=True)
settings.register_profile("others", print_blob=True)
settings.load_profile(os.environ.get("TEST_EXAMPLES", "same"))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The bundled Redis, for the whole run. Tests keep apart by key prefixes of their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url
