"""`quire down` and a launcher that it does not see."""

from pathlib import Path

import pytest

from ops.cli.main import main
from ops.launcher.deployments import Deployment, claimed_directory, recorded, write
from ops.runtime.identity import Identity


def test_a_launcher_that_lives_elsewhere_is_not_told_to_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in another container with the same home: its process has another number here, or none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = "http://127.0.0.1:8000"
    unseen = Deployment(url, 8000, "quire-tiny", "redis://", "p:", Identity(2**22 + 1, "never"), {})
    with claimed_directory(8000):
        write(unseen)
        assert main(["down"]) == 1
        assert f"quire-tiny on {url} goes on" in capsys.readouterr().err
        assert recorded() == [unseen]
    assert main(["down"]) == 0
    assert capsys.readouterr().out == f"stopped quire-tiny on {url}\n"
    assert recorded() == []
