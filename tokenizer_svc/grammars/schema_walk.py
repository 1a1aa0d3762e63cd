"""A walk over a JSON Schema and the schemas within it."""

from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], dict[str, Any]]

_VALUES = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose values are no schemas, whatever they look like."""
_BY_NAME = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords with schemas by names of the client's."""


def mapped(schema: Any, change: Change, own_ids: bool = True) -> Any:
    """The schema as `change` makes it, after the schemas within it. Raises `RecursionError`.

    `own_ids`: whether those within that have an `$id` are changed, too.
    """
    if not isinstance(schema, dict):
        return schema

    def within(part: Any) -> Any:
        if isinstance(part, list):
            return [within(each) for each in part]
        if isinstance(part, dict) and "$id" in part and not own_ids:
            return part
        return mapped(part, change, own_ids)

    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, dict):
            found[name] = {key: within(each) for key, each in value.items()}
        else:
            found[name] = value if name in _VALUES else within(value)
    return change(found)
