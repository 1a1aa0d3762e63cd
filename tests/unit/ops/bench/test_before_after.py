"""Figures are compared round by round, with both sides' benchmarks run in turns from their own files."""

from pathlib import Path

import pytest

from ops.bench import before_after
from ops.bench.before_after import Ratio, compare, figures, ratios

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
    assert dict(figures(nested)) == {"a b": 1.0, "a c 0": 2.5, "a c 1 d": 3.0}


def test_a_ratio_is_of_one_round_and_its_median_over_the_rounds() -> None:
    before = [{"ms": 10.0, "gone": 1}, {"ms": 20.0}, {"ms": 40.0}]
    after = [{"ms": 20.0}, {"ms": 20.0}, {"ms": 10.0, "new": 1}]
    assert ratios(before, after) == {"ms": Ratio(20.0, 20.0, 0.25, 1.0, 2.0)}


def test_a_figure_of_zero_has_no_ratio() -> None:
    assert ratios([{"ms": 0.0}], [{"ms": 1.0}]) == {}
    assert ratios([{"ms": 1.0}], [{"ms": 0.0}]) == {}


def test_both_are_measured_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = before_after.ROOT
    for name, cost in (("old", "2"), ("new", "3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cost").write_text(cost)
        (tmp_path / name / "ops").symlink_to(root / "ops")
    monkeypatch.setattr(before_after, "BENCHMARKS", {"tiny": ("-c", BENCHMARK)})
    found = compare(tmp_path / "old", tmp_path / "new", "tiny", rounds=3, seed=1)
    assert (tmp_path / "order").read_text().split() == ["old", "new", "new", "old", "old", "new"]
    same = {"step rows 0": Ratio(4, 4, 1, 1, 1), "step rows 1": Ratio(8, 8, 1, 1, 1)}
    assert found == {"step ms": Ratio(4.0, 6.0, 1.5, 1.5, 1.5), **same}
