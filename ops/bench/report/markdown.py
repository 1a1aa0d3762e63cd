"""Numbers, spreads and tables as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Sequence[object]

SPREADS = (("lowest", "median", "highest"), ("p10", "p50", "p90"), ("p50", "p90", "p99"))
"""Keys under which results keep a spread."""


def table(head: Row, rows: Iterable[Row]) -> str:
    """Columns of numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    marks = ["---:" if all(map(_is_figure, column)) else "---" for column in zip(*cells, strict=True)]
    return "\n".join(_line(row) for row in ([str(name) for name in head], marks, *cells))


def _is_figure(text: str) -> bool:
    return text[:1] in "-0123456789"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(each.replace('|', '/') for each in cells)} |"


def cell(value: object) -> str:
    """A value of a result as one cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, Mapping):
        return spread(value) if is_spread(value) else pairs(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return str(value)


def number(value: float) -> str:
    """Four digits, or all of those before the point: 0.0312, 4.304, 12,549."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def is_spread(value: object) -> bool:
    return isinstance(value, Mapping) and any(set(value) == set(keys) for keys in SPREADS)


def spread(value: Mapping[str, float]) -> str:
    """The middle, and in brackets the ends; all shares in a row where the first is the middle."""
    if "p99" in value:
        return " / ".join(number(each) for each in value.values())
    low, middle, high = (value[key] for keys in SPREADS if set(value) == set(keys) for key in keys)
    return f"{number(middle)} ({number(low)} to {number(high)})"


def triple(values: Sequence[float] | None) -> str:
    """A ratio that is kept as [lowest, median, highest]."""
    return spread(dict(zip(SPREADS[0], values, strict=True))) if values else "-"


def pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {cell(value)}" for key, value in values.items())
