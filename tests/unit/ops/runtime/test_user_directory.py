from pathlib import Path

import pytest

from ops.runtime.user_directory import NOWHERE, user_directory


def test_a_variable_names_it_if_its_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/fox")
    for value, base in ((str(tmp_path), tmp_path), ("here", "/home/fox/.cache"), ("", "/home/fox/.cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_directory("XDG_CACHE_HOME", ".cache") == Path(base) / "quire"


def test_a_user_without_a_home_can_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # for a user whom /etc/passwd does not have
    assert user_directory("XDG_CACHE_HOME", ".cache") == NOWHERE / ".cache" / "quire"
