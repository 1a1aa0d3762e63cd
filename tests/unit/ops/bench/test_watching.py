"""What watching costs: that it is measured, and what follows from it."""

from pathlib import Path

import pytest

from ops.bench import watching
from ops.bench.record import read
from ops.bench.watching import main, measure, shares


def test_every_part_is_measured_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(watching, "CALLS", 5)
    costs = measure(3)
    assert all(0 < cost < 1e6 for cost in costs.values())
    assert main(["--rows", "2", "--out", str(tmp_path / "watching.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    results = read(tmp_path / "watching.json").results
    assert results["rows"] == 2
    assert results["microseconds"].keys() == costs.keys()
    assert len(lines) == len(costs) + len(results["part of a core"])


def test_shares_are_of_one_core_s_time() -> None:
    costs = {
        "gateway, a token": 2.0,
        "scheduler, a step": 40.0,
        "scheduler, a step on record": 10.0,
        "a snapshot": 5000.0,
    }
    assert shares(costs, rows=10, step_ms=20) == pytest.approx(
        {"gateway": 0.001, "scheduler": 0.002, "snapshots": 0.004, "metrics": 0.007, "recording": 0.0005}
    )
