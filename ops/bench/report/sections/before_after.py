"""A change beside the commit before it."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import table

Results = Mapping[str, Any]

COLUMNS = ("figure", "before", "after", "lowest", "ratio", "highest")

MARGIN = 0.03
"""Ratios this close to 1 count as unchanged."""


def compared(results: Results, drawings: str) -> list[str]:
    blocks = [
        f"Commit {results['after']} over commit {results['before']}, in turns: the median ratio of each "
        "figure, and the lowest and highest of a turn. Figures that are equal in all turns are left out, and "
        "so are the 10th and 90th of a hundred."
    ]
    for name, one in results["benchmarks"].items():
        figures = one["figures"].items()
        medians = {key: ratio for key, ratio in figures if not key.endswith((" p10", " p90"))}
        same = sum(abs(ratio["middle"] - 1) <= MARGIN for ratio in medians.values())
        blocks += [
            f"`{name}`, turns: {one['rounds']}. Of {len(medians)} figures {same} are within {MARGIN:.0%}.",
            table(COLUMNS, list(map(_row, medians.items()))),
        ]
    return blocks


def _row(figure: tuple[str, Mapping[str, float]]) -> tuple[str, ...]:
    name, ratio = figure
    return (
        name,
        *(f"{ratio[side]:.4g}" for side in ("before", "after")),
        *(f"{ratio[which]:.3f}" for which in ("low", "middle", "high")),
    )
