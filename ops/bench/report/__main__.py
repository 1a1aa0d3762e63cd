"""The report: what the result files say, for a person.

    python -m ops.bench.report        writes ops/bench/report.md and its drawings

Everything comes from `ops/bench/results/*.json`, so that the same files give the same report. What is told
of each kind of benchmark is in `sections/`, what is asked of Quire in `targets.py`.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.bench.record import Record, read_all
from ops.bench.report import plots
from ops.bench.report.markdown import is_spread, number, spread, table
from ops.bench.report.sections import in_order, kind_of
from ops.bench.report.simulation import plot_simulation
from ops.bench.report.slower import COMPARISONS, Comparison, slower
from ops.bench.report.targets import Verdict, judged

FOLDER = Path(__file__).parents[1]
RESULTS = "results"
DRAWINGS = "plots"

PLOTS: Mapping[str, Callable[[dict[str, Any], Path], list[Path]]] = {
    "compare": plots.plot_compare,
    "step": plots.plot_step,
    "mechanisms": plots.plot_mechanisms,
    "simulate": plot_simulation,
}


def text(records: Sequence[Record]) -> str:
    """The report as Markdown."""
    verdicts = judged(records)
    blocks = [
        "# What was measured of Quire",
        "Made by `make report` from the files in [results](results), which "
        "[docs/measure.md](../../docs/measure.md) says how to make. Each section begins with what it comes "
        f"from. {_gpus(records)}",
        "## Targets",
        *_targets(verdicts),
    ]
    if any(record.benchmark in COMPARISONS for record in records) or any(one.record for one in verdicts):
        missed = [verdict for verdict in verdicts if verdict.met is False]
        blocks += ["## What Quire is slower at", *_slower(slower(records), missed)]
    environments = list(dict.fromkeys(_environment(record) for record in records))
    titles = Counter(map(_title, records))
    for record in in_order(list(records)):
        blocks += _section(record, environments, titles)
    blocks += ["## Versions", *(f"{place}. {each}" for place, each in enumerate(environments, 1))]
    return "\n\n".join(blocks) + "\n"


def _gpus(records: Sequence[Record]) -> str:
    found = sorted({gpu for record in records if (gpu := gpu_of(record))})
    if not found:
        return "**No GPU was measured:** every figure here is one of a CPU."
    return f"Sections that name a GPU come from a machine that has one ({', '.join(found)})."


def gpu_of(record: Record) -> str:
    """The GPU that a result says it was measured on; empty if it says none."""
    device = str(record.results.get("device", ""))
    if device == "cpu":
        return ""
    return str(record.machine.get("gpu", device))


def _targets(verdicts: Sequence[Verdict]) -> list[str]:
    met, missed, open_ = (
        [verdict for verdict in verdicts if verdict.met is way] for way in (True, False, None)
    )
    rows = [
        (
            verdict.target.name,
            verdict.target.asked,
            "" if verdict.value is None else number(verdict.value),
            {True: "met", False: "**missed**", None: "not measured"}[verdict.met],
            _from(verdict.record) if verdict.record else "",
        )
        for verdict in verdicts
    ]
    return [
        "What is asked of Quire (`ops/bench/report/targets.py`), and what was found: "
        f"{len(met)} met, {len(missed)} missed, {len(open_)} not measured.",
        table(("figure", "asked", "measured", "", "from"), rows),
    ]


def _slower(worse: Sequence[Comparison], missed: Sequence[Verdict]) -> list[str]:
    ahead = [
        (one.what, one.than, one.ours, one.theirs, _ratio(one.ratio), _link(one.record)) for one in worse
    ]
    below = [
        (one.target.name, one.target.asked, one.value, _from(one.record)) for one in missed if one.record
    ]
    blocks = []
    if ahead:
        blocks += [
            "Every figure in which somebody else was ahead, the worst first. The ratio is Quire's over "
            "theirs, above 1 for times and below 1 for rates. Where there were rounds it is their median, "
            "with lowest and highest; the figures are then those of all rounds together.",
            table(("figure", "than", "Quire's", "theirs", "ratio", "from"), ahead),
        ]
    if below:
        blocks += ["Targets that are missed.", table(("figure", "asked", "measured", "from"), below)]
    return blocks or ["Nothing that was measured: no ratio is against Quire, and no target is missed."]


def _ratio(ratio: Mapping[str, float]) -> str:
    return spread(ratio) if is_spread(ratio) else number(ratio["median"])


def _title(record: Record) -> str:
    return ": ".join(filter(None, (kind_of(record).title, _subject(record))))


def _section(record: Record, environments: Sequence[str], titles: Mapping[str, int]) -> list[str]:
    """`titles`: how many records have each. One that several have gets the record's name."""
    kind, title = kind_of(record), _title(record)
    if titles[title] > 1:
        title = f"{title} ({record.name})"
    return [
        f"## {title}",
        _origin(record, environments),
        *kind.tell(record.results, f"{DRAWINGS}/{record.name}"),
    ]


def _subject(record: Record) -> str:
    return kind_of(record).subject(record.results)


def _origin(record: Record, environments: Sequence[str]) -> str:
    """Where and when."""
    machine = record.machine
    parts = f"{machine['cpu']}, {machine['cores']} cores", f"{machine['memory_gib']} GiB", gpu_of(record)
    where = ", ".join(filter(None, parts))
    place = environments.index(_environment(record)) + 1
    return (
        f"_{_link(record)}: {record.date[:10]}, commit {record.commit or 'unknown'}, seed {record.seed}; "
        f"{where}; [versions {place}](#versions)._"
    )


def _environment(record: Record) -> str:
    """System and versions, as cells."""
    packages = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f"{record.machine['system']}, Python {record.machine['python']}, {packages}"


def _link(record: Record) -> str:
    return f"[{record.name}.json]({RESULTS}/{record.name}.json)"


def _from(record: Record) -> str:
    return ", ".join(filter(None, (_link(record), _subject(record))))


def write(folder: Path) -> Path:
    """Make `report.md` and the drawings that it shows in `folder`, from the result files there.

    Raises `ValueError` if a result file cannot be read.
    """
    records = read_all(folder / RESULTS)
    path = folder / "report.md"
    path.write_text(report := text(records))
    shutil.rmtree(folder / DRAWINGS, ignore_errors=True)  # those of results that are no longer there, too
    for record in records:
        if plot := PLOTS.get(record.benchmark):
            for drawing in plot(record.results, folder / DRAWINGS / record.name):
                if f"]({drawing.relative_to(folder)})" not in report:
                    drawing.unlink()
    return path


if __name__ == "__main__":
    print(write(FOLDER))
