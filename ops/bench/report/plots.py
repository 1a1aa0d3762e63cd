"""Drawings of results, as SVG files of a few kilobytes. Needs matplotlib, and no display."""

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ops.bench.report.svg import shrunk
from ops.bench.step import BATCH, CONTEXT

COMPARE = {
    "compare_throughput.svg": "Generated tokens a second; the whiskers go from the worst round to the best",
    "compare_p99.svg": "The slowest of a hundred, by requests at once",
    "compare_batches.svg": "What of the computed tokens was needed, and what of the KV memory was wasted",
}
"""The drawings of a comparison, and what they show."""
STEP_TOTALS = ("step", "floor", "times the floor", "kernel by kernel")
"""Every other figure of a step is a part of it, as it is computed kernel by kernel."""
STEP = "step.svg", "The parts of a step, and beside them in black the least that it can take"
MECHANISMS = (
    "mechanisms.svg",
    "With a mechanism over without it; the whiskers go from the lowest to the highest",
)
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
    drawn = [draw(results["loads"]) for draw in (_throughput, _latency, _batches)]
    return [saved(figure, folder / name) for figure, name in zip(drawn, COMPARE, strict=True)]


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


def _legend(figure: Figure, columns: int | None = None) -> None:
    """One for all axes, above them."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = columns or max(1, len(labels))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def step_shapes(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The steps of `quire bench step` by what was in them."""
    return {
        **{f"{rows} decodes, context {CONTEXT}": one for rows, one in results["decode_by_batch"].items()},
        **{f"{BATCH} decodes, context {size}": one for size, one in results["decode_by_context"].items()},
        **{f"prefill of {size}": one for size, one in results["prefill"].items()},
    }


def plot_step(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the results of `quire bench step`: a step's parts on each other, its floor beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = {
        f"decodes at context {CONTEXT}": results["decode_by_batch"],
        f"context of {BATCH} decodes": results["decode_by_context"],
        "tokens of a prefill": results["prefill"],
    }
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    drawn = {title: shapes for title, shapes in groups.items() if shapes}  # contexts may be too long for all
    widths = [len(shapes) + 1 for shapes in drawn.values()]
    (panels,) = figure.subplots(1, len(drawn), width_ratios=widths, squeeze=False)
    for axes, (title, shapes) in zip(panels, drawn.items(), strict=True):
        _stacks(axes, shapes)
        axes.set(xlabel=title, ylabel="ms")
    _legend(figure, columns=5)
    return [saved(figure, folder / STEP[0])]


def _stacks(axes: Axes, shapes: dict[str, dict[str, float]]) -> None:
    steps = list(shapes.values())
    places = range(len(steps))
    tops = [0.0] * len(steps)
    for part in steps[0]:
        if part in STEP_TOTALS:
            continue
        times = [step[part] for step in steps]
        axes.bar([place - 0.15 for place in places], times, 0.5, bottom=tops, label=part)
        tops = [top + time for top, time in zip(tops, times, strict=True)]
    floors = [step["floor"] for step in steps]
    axes.bar([place + 0.25 for place in places], floors, 0.2, color="black", label="floor")
    axes.set_xticks(places, list(shapes))
    axes.set_xlim(-0.6, len(steps) - 0.4)


def plot_mechanisms(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the results of `quire bench mechanisms`: the ratios with their spread, one bar each.

    A ratio of 0, which a logarithmic scale has no place for, and one that there is not are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bars = [
        (f"{name}: {figure}", values["ratio"])
        for name, one in results.items()
        for figure, values in one["figures"].items()
        if values["ratio"] and values["ratio"][0] > 0
    ]
    figure = Figure(figsize=(9, 0.8 + 0.28 * len(bars)), layout="constrained")
    axes = figure.subplots()
    labels, ratios = [label for label, _ in bars], [ratio for _, ratio in bars]
    middles = [middle for _, middle, _ in ratios]
    ends = [[middle - low for low, middle, _ in ratios], [high - middle for _, middle, high in ratios]]
    places = range(len(bars))
    axes.barh(places, [middle - 1 for middle in middles], left=1, xerr=ends, capsize=2)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel("with over without")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return [saved(figure, folder / MECHANISMS[0])]


def saved(figure: Figure, path: Path) -> Path:
    """Write the figure as SVG; the same figure gives the same file."""
    # Letters stay letters, and ids do not change from run to run: the files are small and differ little.
    drawing = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    path.write_text(shrunk(drawing.getvalue()))
    return path
