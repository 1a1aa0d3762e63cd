"""A deployment whose processes are killed, stopped and replaced all the time."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment


@pytest.fixture(scope="package")
def deployment(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    # In the type that people get. Answers are compared with answers of this deployment.
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("survival"), QUIRE_DTYPE="auto")
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


@pytest.fixture
async def client(deployment: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    deployment.wait_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=240
    ) as client:
        yield client
