from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place to run `quire` in, with stand-ins for the services."""
    stage = Stage(tmp_path)
    stage.build()
    yield stage
    stage.clear()
