"""What a launcher keeps on disk, and what it leaves elsewhere."""

from errno import ENOLCK, ENOSPC
from pathlib import Path

import pytest

from ops.launcher.deployments import Deployment, claimed_directory, forget_ended
from ops.launcher.launch import Launcher
from ops.launcher.redis_server import RedisServer
from ops.launcher.specs import Options
from ops.runtime.errors import LaunchError


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
    forget_ended(8000)
    assert not left.exists()


def test_a_launcher_that_lives_is_on_record_whoever_takes_it_for_dead() -> None:
    with claimed_directory(8000) as directory:
        (directory / "deployment.json").touch()
        assert not forget_ended(8000)
        assert (directory / "deployment.json").exists()
    assert forget_ended(8000)
    assert not (directory / "deployment.json").exists()


async def test_a_deployment_goes_on_when_its_record_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Deployment) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.delenv("QUIRE_REDIS_URL", raising=False)
    monkeypatch.setattr("ops.launcher.launch.write", full)
    said: list[str] = []
    with claimed_directory(8000) as directory:
        launcher = Launcher(Options(), directory, said.append)
        launcher._remember()
        await launcher.close()
    (line,) = said
    assert line.startswith("record ")
    assert line.endswith("No space left on device")


def test_who_cannot_keep_state_is_told_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with (
        pytest.raises(LaunchError, match=r"cannot keep state in .*file.*XDG_STATE_HOME"),
        claimed_directory(1),
    ):
        pass


@pytest.mark.parametrize("lacks", ["fcntl.flock", "rotate"])
def test_so_is_who_has_a_file_system_that_cannot_do_all_of_it(
    monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def missing(*_: object) -> None:
        raise OSError(ENOLCK, "No locks available")

    with claimed_directory(1) as directory:
        (directory / "logs" / "gateway.log").write_text("one line")
    monkeypatch.setattr(f"ops.launcher.deployments.{lacks}", missing)
    with pytest.raises(LaunchError, match=r"No locks available; XDG_STATE_HOME"), claimed_directory(1):
        pass
