"""Results of a kind that has no words of its own: all their numbers, in tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from ops.bench.report.markdown import is_spread, table

Results = Mapping[str, Any]


def numbers(results: Results, drawings: str) -> list[str]:
    return list(_blocks("", results))


def _blocks(title: str, values: Results) -> Iterator[str]:
    """What stands alone first, then a table for each group of alike ones, then what is nested deeper."""
    single = {key: value for key, value in values.items() if not _is_group(value)}
    groups = {key: _as_mapping(value) for key, value in values.items() if _is_group(value)}
    if single:
        yield from _titled(title, table(("", "value"), single.items()))
    for key, group in groups.items():
        name = f"{title}, {key}" if title else key
        if all(_is_row(row) for row in group.values()):
            columns = list(dict.fromkeys(column for row in group.values() for column in row))
            rows = [(label, *(row.get(column) for column in columns)) for label, row in group.items()]
            yield from _titled(name, table(("", *columns), rows))
        else:
            yield from _blocks(name, group)


def _titled(title: str, block: str) -> Iterator[str]:
    if title:
        yield f"{title.replace('_', ' ').capitalize()}:"
    yield block


def _is_group(value: object) -> bool:
    """A mapping that is no spread, or a list of mappings."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, Mapping) for each in value)
    return isinstance(value, Mapping) and bool(value) and not is_spread(value)


def _as_mapping(value: Any) -> Results:
    return value if isinstance(value, Mapping) else {str(place): each for place, each in enumerate(value, 1)}


def _is_row(value: object) -> bool:
    """A mapping of values that each fit a cell."""
    return isinstance(value, Mapping) and not is_spread(value) and not any(map(_is_group, value.values()))
