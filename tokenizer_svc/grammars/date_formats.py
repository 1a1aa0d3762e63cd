"""Dates and times in answers: such as every reader takes.

The library's own patterns of JSON Schema's formats allow more: the second 60 in any minute, the 29th of
February in any year, small letters, any number of digits after the second. Readers refuse some of these, as
Python's `datetime` does.
"""

from typing import Any

from tokenizer_svc.grammars.schema_walk import mapped

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


def narrowed(schema: Any) -> Any:
    """The JSON Schema, whose dates and times follow `PATTERNS`, too. Raises `RecursionError`."""
    found: set[str] = set()

    def narrow(each: dict[str, Any]) -> dict[str, Any]:
        kind, every = each.get("format"), each.get("allOf", [])
        if not isinstance(kind, str) or kind not in PATTERNS or not isinstance(every, list):
            return each
        found.add(kind)
        return {**each, "allOf": [*every, {"$ref": f"#/$defs/{_NAMES[kind]}"}]}

    # What has an `$id` cannot refer to what is outside of it, and stays as it is.
    changed = mapped(schema, narrow, own_ids=False)
    if not found:
        return schema
    defined = changed.get("$defs")
    patterns = {_NAMES[name]: {"pattern": f"^{PATTERNS[name]}$"} for name in sorted(found)}
    return {**changed, "$defs": {**(defined if isinstance(defined, dict) else {}), **patterns}}
