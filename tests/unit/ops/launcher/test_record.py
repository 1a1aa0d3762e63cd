"""What a launcher leaves in its directory, and elsewhere."""

from pathlib import Path

import pytest

from ops.launcher.record import claimed_directory, forget
from ops.launcher.redis_server import RedisServer


@pytest.fixture(autouse=True)
def long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("long" * 30)))


def killed_with_a_socket_elsewhere() -> Path:
    """The socket's directory that a launcher has left that was killed."""
    with claimed_directory(8000) as directory:
        found = Path(RedisServer(directory=directory / "redis").address.removeprefix("unix://")).parent
    assert found.is_dir()
    assert not found.is_relative_to(directory)
    return found


def test_the_next_launcher_removes_what_one_that_was_killed_left_elsewhere() -> None:
    left = killed_with_a_socket_elsewhere()
    with claimed_directory(8000):
        assert not left.exists()


def test_so_does_quire_down() -> None:
    left = killed_with_a_socket_elsewhere()
    forget(8000)
    assert not left.exists()
