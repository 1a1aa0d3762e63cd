"""Who owns the keys that are kept on disk."""

import os
from pathlib import Path

import pytest

from ops.launcher.kept_keys import keep, kept

RECORDS = {"digest": "record"}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of the deployment on port 8123."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = tmp_path / "quire" / "8123"
    directory.mkdir(parents=True)
    return directory


@pytest.mark.parametrize("user", [0, 1000])
def test_what_root_writes_belongs_to_the_account_of_the_deployment(
    directory: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    given: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(
        os, "fchown", lambda handle, uid, gid: given.append((os.fstat(handle).st_ino, uid, gid))
    )
    keep(8123, RECORDS)
    of, written = directory.stat(), (directory / "keys.json").stat()
    assert given == ([(written.st_ino, of.st_uid, of.st_gid)] if user == 0 else [])
    assert written.st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to write for others")
def test_root_gives_them_to_another_account(directory: Path) -> None:
    os.chown(directory, 10001, 10002)
    keep(8123, RECORDS)
    written = (directory / "keys.json").stat()
    assert (written.st_uid, written.st_gid) == (10001, 10002)


def test_nothing_else_is_left_in_the_directory(directory: Path) -> None:
    keep(8123, {})
    keep(8123, RECORDS)
    assert [path.name for path in directory.iterdir()] == ["keys.json"]
    assert kept(8123) == RECORDS
