"""Drawings of a comparison of settings. Needs matplotlib; the same results give the same files."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ops.bench.report.plots import saved

DRAWINGS = {
    "simulate_throughput.svg": "Tokens generated a second",
    "simulate_first_token.svg": "Times to the first token",
    "simulate_between_tokens.svg": "Times between tokens",
    "simulate_blocks.svg": "Blocks that running sequences hold, over time",
    "simulate_fairness.svg": "Fairness over tenants",
}
"""Files, and what they show."""
IN_THE_REPORT = ("simulate_blocks.svg", "simulate_fairness.svg")
"""The report's tables have the figures of the others."""
SHARES = ("p50", "p90", "p99")
SIZE = (9, 4)


def plot_simulation(found: dict[str, Any], folder: Path) -> list[Path]:
    """Draw what `ops.simulate.compare.compare` gives. Returns the files, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = found["runs"]
    drawn = (
        _bars(runs, "output_rate", "generated tokens per second"),
        _percentiles(runs, "first_token_ms", "ms to the first token"),
        _percentiles(runs, "between_tokens_ms", "ms between tokens"),
        _blocks(runs),
        _bars(runs, "fairness", "Jain's index over tenants"),
    )
    return [saved(figure, folder / name) for figure, name in zip(drawn, DRAWINGS, strict=True)]


def _bars(runs: list[dict[str, Any]], key: str, label: str) -> Figure:
    """One number of each run."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.barh([run["name"] for run in runs], [run[key] for run in runs], color="C0")
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


def _percentiles(runs: list[dict[str, Any]], key: str, label: str) -> Figure:
    """Of each run a line from the median to the slowest of a hundred, with a mark for each percentile."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        values = [run[key].get(share, 0.0) for share in SHARES]
        axes.plot(values, [number] * len(values), color="C0", alpha=0.5, zorder=1)
        for place, (share, value) in enumerate(zip(SHARES, values, strict=True)):
            axes.scatter([value], [number], color=f"C{place}", label=share.upper() if not number else None)
    axes.set_yticks(range(len(runs)), [run["name"] for run in runs])
    axes.invert_yaxis()
    axes.set(xlabel=label, xscale="log")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(SHARES), frameon=False)
    return figure


def _blocks(runs: list[dict[str, Any]]) -> Figure:
    """How much of the pools running sequences held, over time."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for run in runs:
        width, held = run["held_share_seconds"], run["held_share"]
        middles = [width * (number + 0.5) for number in range(len(held))]
        axes.plot(middles, [100 * share for share in held], label=run["name"])
    axes.set(xlabel="seconds", ylabel="% of the blocks held", ylim=(0, 100))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
