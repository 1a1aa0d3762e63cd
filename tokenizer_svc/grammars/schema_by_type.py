"""A schema taken apart by the types of its values, for formats that write the type of a value."""

from collections.abc import Mapping

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.call_values import OF_TYPE, Schema, Values, constants_of, is_text

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


def by_type(schema: Schema, values: Values) -> list[tuple[str, Schema]]:
    """The parts, each with the name of its type. `values`: the function's, which look up references."""
    return [pair for each in choices_of(schema, values) for pair in _parts(each)]


def texts_of(schema: Schema, values: Values) -> list[Schema]:
    """The parts of a schema that takes texts alone. Empty: it takes other values, too, or does not tell."""
    choices = choices_of(schema, values)
    if not all(map(_may_be_text, (schema, *choices))):
        return []
    if not all(each.keys() & {"type", "enum", "const"} for each in choices):
        return []
    parts = [pair for each in choices for pair in _parts(each)]
    return [part for _, part in parts] if all(kind == "string" for kind, _ in parts) else []


def takes_texts(schema: Schema, values: Values) -> bool:
    """Whether it takes texts alone; not if it cannot be followed."""
    try:
        return is_text(schema) or bool(texts_of(schema, values))
    except GrammarError:
        return False


def choices_of(schema: Schema, values: Values, left: int = MOST_REFERENCES) -> list[Schema]:
    """The schemas of which a value follows one. `left`: references that are followed at most."""
    match schema:
        case {"$ref": str(pointer)} if left:
            return choices_of(values.resolved(pointer), values, left - 1)
        case {"anyOf": list(choices)} | {"oneOf": list(choices)} if left:
            return [part for each in choices for part in choices_of(each, values, left - 1)]
        case {"allOf": [part]} if left and not schema.keys() & {"type", "enum", "const"}:
            return choices_of(part, values, left - 1)
    return [schema]


def _may_be_text(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema.get("type", "string") in ("string", ["string"])


def _parts(schema: Schema) -> list[tuple[str, Schema]]:
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("no value is valid" if schema is False else "a schema must be an object")
    if "const" in schema or "enum" in schema:
        found: dict[str, list[object]] = {}
        for value in constants_of(schema):
            found.setdefault(_KINDS[type(value)], []).append(value)
        return [(kind, {"type": kind, "enum": values}) for kind, values in found.items()]
    named = schema.get("type", [kind for kind, words in OF_TYPE.items() if words & schema.keys()])
    if not isinstance(named, str | list | None):
        raise GrammarError(f"{named!r} is not a type")
    kinds = [named] if isinstance(named, str) else named or dict.fromkeys(_KINDS.values())
    return [("number" if kind == "integer" else kind, {**schema, "type": kind}) for kind in kinds]
