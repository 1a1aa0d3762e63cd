"""A deployment that a command or a benchmark starts for itself."""

from pathlib import Path

import pytest

from ops.launcher.specs import own_code
from ops.launcher.temporary import temporary_deployment
from ops.runtime.errors import LaunchError


def test_what_does_not_come_up_is_an_error_after_its_words(tmp_path: Path) -> None:
    said: list[str] = []
    environment = {**own_code(), "XDG_STATE_HOME": str(tmp_path)}
    with (
        pytest.raises(LaunchError, match="ended before it was ready"),
        temporary_deployment(["--model", str(tmp_path)], environment, said.append),
    ):
        pytest.fail("a directory without a model is served")
    assert said == []  # errors go where this process's go


def test_it_answers_within_the_block_and_is_gone_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said: list[str] = []
    with temporary_deployment((), {**own_code(), "QUIRE_KV_MEMORY": "64MiB"}, said.append) as own:
        assert said[-1].startswith("ready")
        assert {"gateway", "tokenizer", "scheduler", "worker"} <= own.pids.keys()
        assert all(process.alive() for process in own.processes.values())
    assert not own.launcher.alive()
    assert not any(process.alive() for process in own.processes.values())
