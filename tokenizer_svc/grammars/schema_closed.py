"""JSON Schemas whose objects have the listed properties alone.

Who lists properties means these, although JSON Schema allows others unless `additionalProperties` says no. A
small model would make up more and more of them until its answer is cut off.
"""

from collections.abc import Mapping
from typing import Any

from tokenizer_svc.grammars.schema_limits import with_required
from tokenizer_svc.grammars.schema_walk import mapped

_SAYS_MORE = frozenset(
    ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties", "maxProperties")
)
"""Keywords that say which other properties an object may have, or how many it has."""
_JOINED = frozenset(("$ref", "$dynamicRef", "anyOf", "if"))
"""Keywords by which an object follows another schema, too."""


def closed(schema: Any) -> Any:
    """The JSON Schema that allows no other properties in objects with `properties`, unless it says which.

    A schema in which two schemas hold for one object, or exactly one of several may hold, stays as it is: one
    may list what the other does not. Raises `RecursionError`.
    """
    joined = False

    def looked_at(each: dict[str, Any]) -> dict[str, Any]:
        nonlocal joined
        joined |= not each.keys().isdisjoint(("allOf", "oneOf"))
        joined |= "properties" in each and not each.keys().isdisjoint(_JOINED)
        return each

    mapped(schema, looked_at)
    return schema if joined else mapped(schema, _closed)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    listed = schema.get("properties")
    if not isinstance(listed, Mapping) or not listed or not schema.keys().isdisjoint(_SAYS_MORE):
        return schema
    return with_required(schema) | {"additionalProperties": False}
