from collections.abc import Iterator

import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment, running


@pytest.fixture(scope="session")
def deployment(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One deployment of the shipped model for all end-to-end tests that do not break it."""
    yield from running(redis_server, tmp_path_factory.mktemp("deployment"))
