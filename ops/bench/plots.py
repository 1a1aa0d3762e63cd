"""Drawings of results, as SVG files of a few kilobytes. Needs matplotlib, and no display."""

import math
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

LATENCIES = {
    "first_token": "time to the first token",
    "between_tokens": "time between tokens",
    "end_to_end": "whole answer",
}
SHARES = {
    "batch_efficiency": "computed tokens that were needed",
    "kv_wasted_share": "KV memory held that was wasted",
}


def plot_compare(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the results of a comparison: throughput as bars, the slowest of a hundred as lines, waste as bars.

    `results`: what `ops.bench.compare.compare` gives. Returns the files, in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [
        saved(_throughput(results["loads"]), folder / "compare_throughput.svg"),
        saved(_latency(results["loads"]), folder / "compare_p99.svg"),
        saved(_batches(results["loads"]), folder / "compare_batches.svg"),
    ]


def _throughput(loads: list[dict[str, Any]]) -> Figure:
    """Tokens generated a second; a bar's whisker goes from the worst round to the best."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    rates, whiskers = {}, {}
    for name, column in _columns(loads).items():
        rates[name] = [found["all"]["output_rate"] for found in column]
        rounds = [[one["output_rate"] for one in found["rounds"]] for found in column]
        spans = zip(rates[name], rounds, strict=True)
        whiskers[name] = [(max(0.0, rate - min(each)), max(0.0, max(each) - rate)) for rate, each in spans]
    _bars(axes, loads, rates, whiskers)
    axes.set_ylabel("generated tokens per second")
    _legend(figure)
    return figure


def _latency(loads: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    users = [load["concurrency"] for load in loads]
    for axes, (kind, title) in zip(figure.subplots(1, 3), LATENCIES.items(), strict=True):
        for name, column in _columns(loads).items():
            times = [found["all"][kind].get("p99", math.nan) for found in column]
            axes.plot(users, times, marker="o", label=name)
        axes.set(title=f"{title}, P99", xlabel="requests at once", ylabel="ms", xscale="log", yscale="log")
        axes.set_xticks(users, [str(each) for each in users])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    _legend(figure)
    return figure


def _batches(loads: list[dict[str, Any]]) -> Figure:
    """How much of what was computed, and of the KV memory held, had to be."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    told = {name: column for name, column in _columns(loads).items() if all(one["batch"] for one in column)}
    for axes, (key, title) in zip(figure.subplots(1, 2), SHARES.items(), strict=True):
        shares = {name: [100 * found["batch"][key] for found in column] for name, column in told.items()}
        _bars(axes, loads, shares)
        axes.set(title=title, ylabel="%")
    _legend(figure)
    return figure


def _columns(loads: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What was found of each competitor, load by load."""
    return {name: [load["competitors"][name] for load in loads] for name in loads[0]["competitors"]}


def _bars(
    axes: Axes,
    loads: list[dict[str, Any]],
    heights: dict[str, list[float]],
    whiskers: dict[str, list[tuple[float, float]]] | None = None,
) -> None:
    """A group of bars for each load, one of each competitor. `whiskers`: below and above a bar's top."""
    width = 0.8 / max(1, len(heights))
    for number, (name, column) in enumerate(heights.items()):
        places = [load + (number - (len(heights) - 1) / 2) * width for load in range(len(loads))]
        ends = list(zip(*whiskers[name], strict=True)) if whiskers else None
        axes.bar(places, column, width * 0.92, yerr=ends, label=name, capsize=2)
    axes.set_xticks(range(len(loads)), [str(load["concurrency"]) for load in loads])
    axes.set_xlabel("requests at once")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _legend(figure: Figure) -> None:
    """One for all axes, above them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, len(labels)), frameon=False)


def saved(figure: Figure, path: Path) -> Path:
    """Write the figure as SVG; the same figure gives the same file."""
    # Letters stay letters, and ids do not change from run to run: the files are small and differ little.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})
    return path
