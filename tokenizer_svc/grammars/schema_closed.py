"""JSON Schemas whose objects have the listed properties alone.

Who lists properties means these, although JSON Schema allows others unless `additionalProperties` says no. A
small model would make up more and more of them until its answer is cut off.
"""

from collections.abc import Mapping
from typing import Any

from tokenizer_svc.grammars.schema_limits import with_required
from tokenizer_svc.grammars.schema_walk import mapped

_SAYS_MORE = ("additionalProperties", "patternProperties", "minProperties", "maxProperties")
"""Keywords that say which other properties an object may have, or how many it has."""
_HOLDS = ("properties", "patternProperties", "$ref", "$dynamicRef", "anyOf", "if", "dependentSchemas")
"""Keywords of schemas that an object, or one of its properties, must follow. Two may list different ones."""


def closed(schema: Any) -> Any:
    """The JSON Schema that allows no other properties in objects with `properties`, unless it says which.

    A schema in which two schemas hold for one value, or exactly one of several may hold, stays as it is: one
    may list what the other does not. Raises `RecursionError`.
    """
    joined = False

    def looked_at(each: dict[str, Any]) -> dict[str, Any]:
        nonlocal joined
        parts = each.get("allOf")
        holding = sum(each.get(name) is not None for name in _HOLDS)
        holding += len(parts) if isinstance(parts, list) else 0
        joined |= holding > 1 or each.get("oneOf") is not None
        return each

    mapped(schema, looked_at)
    return schema if joined else mapped(schema, _closed)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    listed, unevaluated = schema.get("properties"), schema.get("unevaluatedProperties", False)
    says_more = any(schema.get(name) is not None for name in _SAYS_MORE) or unevaluated not in (None, False)
    if not isinstance(listed, Mapping) or not listed or says_more:
        return schema
    return with_required(schema) | {"additionalProperties": False}
