"""Core time that other virtual machines take is read from the kernel's counters."""

import os

import pytest

from ops.bench.rig import stolen


def test_the_share_is_of_all_cores_and_the_time_that_the_work_took(tmp_path, monkeypatch) -> None:
    ticks, stat = os.sysconf("SC_CLK_TCK"), tmp_path / "stat"
    stat.write_text(f"cpu  900 0 900 900 0 0 0 {3 * ticks} 70 0\ncpu0 900 0 900 900 0 0 0 800 70 0\n")
    times = iter([10.0, 14.0])
    monkeypatch.setattr(stolen, "STAT", stat)
    monkeypatch.setattr(stolen.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(stolen.os, "cpu_count", lambda: 2)

    def work() -> str:
        stat.write_text(f"cpu  950 0 900 900 0 0 0 {5 * ticks} 90 0\n")
        return "done"

    assert stolen.stolen_share(work) == ("done", pytest.approx(2 / (2 * 4)))


def test_where_nothing_is_counted_nothing_is_stolen(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(stolen, "STAT", tmp_path / "none")
    assert stolen.stolen_share(lambda: 1) == (1, 0)
