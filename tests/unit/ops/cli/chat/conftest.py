from collections.abc import Iterator

import pytest

from tests.support.scripted_gateway import ScriptedGateway, scripted_gateway


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with scripted_gateway() as gateway:
        yield gateway
