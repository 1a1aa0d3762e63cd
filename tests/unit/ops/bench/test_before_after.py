"""Figures are compared round by round, with both sides' benchmarks run in turns from their own files."""

from pathlib import Path

import pytest

from ops.bench import before_after
from ops.bench.before_after import Ratio, compare, numbers_in, ratios
from ops.bench.report.sections.before_after import compared

BENCHMARK = """
import sys
from pathlib import Path
from ops.bench.record import write
cost = float(Path("cost").read_text())
with open("../order", "a") as order:
    order.write(Path.cwd().name + " ")
_, seed, _, out = sys.argv[1:]
results = {"step": {"ms": cost * int(seed), "rows": [4, 8]}, "name": "tiny", "none": 0}
write(Path(out), "tiny", int(seed), results)
"""


def test_every_number_is_a_figure() -> None:
    nested = {"a": {"b": 1, "c": [2.5, {"d": 3}]}, "text": "4", "flag": True, "nothing": None}
    assert dict(numbers_in(nested)) == {"a b": 1.0, "a c 0": 2.5, "a c 1 d": 3.0}


def test_a_ratio_is_of_one_round_and_its_median_over_the_rounds() -> None:
    before = [{"ms": 10.0, "gone": 1}, {"ms": 20.0}, {"ms": 40.0}]
    after = [{"ms": 20.0}, {"ms": 20.0}, {"ms": 10.0, "new": 1}]
    assert ratios(before, after) == {"ms": Ratio(20.0, 20.0, 0.25, 1.0, 2.0)}


def test_a_figure_of_zero_has_no_ratio() -> None:
    assert ratios([{"ms": 0.0}], [{"ms": 1.0}]) == {}
    assert ratios([{"ms": 1.0}], [{"ms": 0.0}]) == {}


def test_a_figure_that_never_differs_is_no_measurement() -> None:
    assert ratios([{"rows": 8, "ms": 1.0}], [{"rows": 8, "ms": 2.0}]).keys() == {"ms"}


def test_the_report_shows_medians_and_counts_what_is_unchanged() -> None:
    found = ratios(
        [{"ms": {"p10": 1.0, "p50": 2.0}, "rate": 100.0}], [{"ms": {"p10": 3.0, "p50": 2.5}, "rate": 101.0}]
    )
    core = {name: one._asdict() for name, one in found.items()}
    benchmarks = {"core": {"rounds": 1, "figures": core}}
    _, counted, shown = compared({"before": "a", "after": "b", "benchmarks": benchmarks}, "")
    assert counted == "`core`, turns: 1. Of 2 figures 1 are within 3%."
    assert "| ms p50 | 2 | 2.5 | 1.250 | 1.250 | 1.250 |" in shown
    assert "p10" not in shown


def test_both_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = before_after.ROOT
    for name, cost in (("old", "2"), ("new", "3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cost").write_text(cost)
        (tmp_path / name / "ops").symlink_to(root / "ops")
    monkeypatch.setattr(before_after, "BENCHMARKS", {"tiny": ("-c", BENCHMARK)})
    rounds = list(compare(tmp_path / "old", tmp_path / "new", "tiny", rounds=3, seed=1))
    assert (tmp_path / "order").read_text().split() == ["old", "new", "new", "old", "old", "new"]
    assert [number for number, _ in rounds] == [1, 2, 3]
    assert rounds[-1][1] == {"step ms": Ratio(4.0, 6.0, 1.5, 1.5, 1.5)}
