"""Each mechanism on and off."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import table, triple
from ops.bench.report.plots import MECHANISMS
from ops.bench.report.sections import engines

Results = Mapping[str, Any]


def subject(results: Results) -> str:
    """Model and type of numbers, which all mechanisms have in common."""
    return next((engines.subject(one) for one in results.values()), "")


def on_and_off(results: Results, drawings: str) -> list[str]:
    blocks = [
        "The same work with a mechanism and without it, in turns: the medians, and the ratio of the two "
        "with its lowest and highest.",
        f"![{MECHANISMS[1]}]({drawings}/{MECHANISMS[0]})",
    ]
    for name, one in results.items():
        rows = [
            (figure, values["with"], values["without"], triple(values["ratio"]))
            for figure, values in one["figures"].items()
        ]
        blocks += [
            f"**{name.capitalize()}.** {one['work'][0].upper()}{one['work'][1:]}.",
            table(("", "with", "without", "with over without"), rows),
        ]
    return blocks
