"""Dates and times in answers: such as every reader takes.

The library's own patterns of JSON Schema's formats allow more: the second 60 in any minute, the 29th of
February in any year, small letters, any number of digits after the second. Readers refuse some of these, as
Python's `datetime` does.
"""

from typing import Any

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAYS = (
    "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])",
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)",
    "02-(0[1-9]|1[0-9]|2[0-8])",
)
DATE = f"({_YEAR}-({'|'.join(_DAYS)})|{_LEAP_YEAR}-02-29)"
TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
PATTERNS = {"date": DATE, "time": TIME, "date-time": f"{DATE}T{TIME}"}
"""Regular expressions of whole texts, by the name of the format."""

_NAMES = {name: f"quire-{name}" for name in PATTERNS}
_VALUES = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose values are no schemas, whatever they look like."""
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords with schemas by names of the client's."""


def narrowed(schema: Any) -> Any:
    """The JSON Schema, whose dates and times follow `PATTERNS`, too. Raises `RecursionError`."""
    found: set[str] = set()
    narrow = _narrowed(schema, found)
    if not found or not isinstance(narrow, dict):
        return schema
    defined = narrow.get("$defs")
    patterns = {_NAMES[name]: {"pattern": f"^{PATTERNS[name]}$"} for name in sorted(found)}
    return {**narrow, "$defs": {**(defined if isinstance(defined, dict) else {}), **patterns}}


def _narrowed(schema: Any, found: set[str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    narrow: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            narrow[name] = {key: _within(each, found) for key, each in value.items()}
        else:
            narrow[name] = value if name in _VALUES else _within(value, found)
    kind, every = schema.get("format"), narrow.get("allOf", [])
    if isinstance(kind, str) and kind in PATTERNS and isinstance(every, list):
        found.add(kind)
        narrow["allOf"] = [*every, {"$ref": f"#/$defs/{_NAMES[kind]}"}]
    return narrow


def _within(part: Any, found: set[str]) -> Any:
    """A part of a schema. What has an `$id` cannot refer to what is outside of it, and stays as it is."""
    if isinstance(part, list):
        return [_within(each, found) for each in part]
    return part if isinstance(part, dict) and "$id" in part else _narrowed(part, found)
