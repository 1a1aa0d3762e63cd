"""A schema in parts of which each has values of one type, for formats that write the type of a value."""

from collections.abc import Mapping

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.call_values import OF_TYPE, Schema, Values, listed

_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
MOST_REFERENCES = 16
"""From one schema to another, until the types of values are known."""


def apart(schema: Schema, values: Values) -> list[tuple[str, Schema]]:
    """The parts, each with the name of its type. `values`: the function's, which look up references."""
    return [pair for each in _choices(schema, values, MOST_REFERENCES) for pair in _by_type(each)]


def _choices(schema: Schema, values: Values, left: int) -> list[Schema]:
    match schema:
        case {"$ref": str(pointer)} if left:
            return _choices(values.resolved(pointer), values, left - 1)
        case {"anyOf": list(choices)} | {"oneOf": list(choices)} if left:
            return [part for each in choices for part in _choices(each, values, left - 1)]
    return [schema]


def _by_type(schema: Schema) -> list[tuple[str, Schema]]:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("no value is valid" if schema is False else "a schema must be an object")
    if "const" in schema or "enum" in schema:
        found: dict[str, list[object]] = {}
        for value in [schema["const"]] if "const" in schema else listed(schema, "enum"):
            found.setdefault(_KINDS[type(value)], []).append(value)
        return [(kind, {"type": kind, "enum": values}) for kind, values in found.items()]
    named = schema.get("type", [kind for kind, words in OF_TYPE.items() if words & schema.keys()])
    kinds = [named] if isinstance(named, str) else named or dict.fromkeys(_KINDS.values())
    return [("number" if kind == "integer" else kind, {**schema, "type": kind}) for kind in kinds]
