"""Drawings of results, as SVG files of a few kilobytes. Needs matplotlib, and no display."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
        _saved(_throughput(results["loads"]), folder / "compare_throughput.svg"),
        _saved(_latency(results["loads"]), folder / "compare_p99.svg"),
        _saved(_batches(results["loads"]), folder / "compare_batches.svg"),
    ]


def _throughput(loads: list[dict[str, Any]]) -> Figure:
    """Tokens generated a second; a bar's whisker goes from the worst to the best round."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()

    def rates(found: dict[str, Any]) -> tuple[float, float, float]:
        rounds = [one["output_rate"] for one in found["rounds"]]
        return found["all"]["output_rate"], min(rounds), max(rounds)

    _bars(axes, loads, {name: [rates(load["competitors"][name]) for load in loads] for name in _names(loads)})
    axes.set_ylabel("generated tokens per second")
    return figure


def _latency(loads: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, (kind, title) in zip(figure.subplots(1, 3), LATENCIES.items(), strict=True):
        for name in _names(loads):
            points = [
                (load["concurrency"], load["competitors"][name]["all"][kind]["p99"])
                for load in loads
                if load["competitors"][name]["all"][kind]
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=name) if points else None
        axes.set(title=f"{title}, P99", xlabel="requests at once", ylabel="ms", xscale="log", yscale="log")
        axes.set_xticks([load["concurrency"] for load in loads], [str(load["concurrency"]) for load in loads])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure


def _batches(loads: list[dict[str, Any]]) -> Figure:
    """How much of what was computed, and of the KV memory held, had to be."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    told = [name for name in _names(loads) if loads[0]["competitors"][name]["batch"]]
    for axes, (key, title) in zip(
        figure.subplots(1, 2),
        {
            "batch_efficiency": "computed tokens that were needed",
            "kv_wasted_share": "KV memory wasted",
        }.items(),
        strict=True,
    ):
        shares = {
            name: [(100 * load["competitors"][name]["batch"][key],) * 3 for load in loads] for name in told
        }
        _bars(axes, loads, shares)
        axes.set(title=title, ylabel="%")
    return figure


def _bars(
    axes: Axes, loads: list[dict[str, Any]], values: dict[str, list[tuple[float, float, float]]]
) -> None:
    """A group of bars for each load, one of each competitor: (height, ends of its whisker)."""
    width = 0.8 / max(1, len(values))
    for number, (name, column) in enumerate(values.items()):
        places = [load + (number - (len(values) - 1) / 2) * width for load in range(len(loads))]
        heights = [height for height, _, _ in column]
        whiskers = [
            [max(0.0, height - low) for height, low, _ in column],
            [max(0.0, high - height) for height, _, high in column],
        ]
        axes.bar(places, heights, width * 0.92, yerr=whiskers, label=name, capsize=2)
    axes.set_xticks(range(len(loads)), [str(load["concurrency"]) for load in loads])
    axes.set_xlabel("requests at once")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend()


def _names(loads: list[dict[str, Any]]) -> list[str]:
    return list(loads[0]["competitors"])


def _saved(figure: Figure, path: Path) -> Path:
    # Letters stay letters, and ids do not change from run to run: the files are small and differ little.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None})
    return path
