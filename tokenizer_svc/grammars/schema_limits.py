"""JSON Schemas as the library follows them exactly.

It reads numbers as floats of 64 bits, in which whole numbers beyond 2**53 become others. It takes no bound of
2**63 or more, no character in a `$ref` that a URI does not have, and no pattern with lookarounds. So a schema
is spelled in another way that allows no other value. What cannot be spelled is refused, or passed over where
the schema need not be followed. Keywords that ask for nothing, as those whose value is null, are left out.
"""

import functools
import math
from typing import Any, TypeGuard
from urllib.parse import quote

from llguidance import LLMatcher

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.date_formats import narrowed
from tokenizer_svc.grammars.schema_walk import mapped

_EXACT = 2**53
"""Up to this each whole number is a float."""
_BEYOND = 2**63
_MOST = 2**63 - 1024
"""The largest float below `_BEYOND`."""
_URI = "%#/:?&=+,;@!$'()*~.-_"
_SAME = {
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+-]+\.)*[A-Za-z0-9_'+-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,}$"
    ),
}
"""Patterns without lookarounds that match the same texts: of pydantic's `Decimal`, and of Zod's `email`."""
_TYPES = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NOTHING = {"propertyNames": ({"type": "string"}, {}, True), "uniqueItems": (False,)}
"""Values with which keywords that are not supported ask for nothing."""


def followed(schema: Any, lenient: bool) -> Any:
    """The JSON Schema for the library. Raises `GrammarError` and `RecursionError`.

    `lenient`: what cannot be followed is passed over.
    """

    def changed(each: dict[str, Any]) -> dict[str, Any]:
        if isinstance(each.get("$ref"), str):
            each["$ref"] = quote(each["$ref"], safe=_URI)
        for name in ("const", "enum"):
            if name in each and not _is_exact(each[name]):
                if not lenient:
                    raise GrammarError(f"{name!r} has a number that a float of 64 bits cannot hold exactly")
                del each[name]
        return each

    return narrowed(mapped(bounded(schema, lenient), changed))


def bounded(schema: Any, lenient: bool) -> Any:
    """The JSON Schema with such keywords, bounds of numbers and patterns as the library takes.

    Raises `GrammarError` and `RecursionError`. `lenient`: as in `followed`.
    """

    def changed(given: dict[str, Any]) -> dict[str, Any]:
        each = {name: value for name, value in given.items() if _asks(name, value)}
        _bound(each, lenient)
        for name in _COUNTS:
            if isinstance(count := each.get(name), float) and count.is_integer():
                each[name] = int(count)
        pattern, kind = each.get("pattern"), each.get("format")
        if isinstance(pattern, str):
            each["pattern"] = _SAME.get(pattern, pattern)
            # A format says itself what such a pattern looks around for.
            spare = lenient or (isinstance(kind, str) and _compiles("format", kind))
            if spare and not _compiles("pattern", each["pattern"]):
                del each["pattern"]
        return _loosened(each) if lenient else each

    return mapped(schema, changed)


def with_required(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object, which lists as properties all that it requires."""
    listed, required = schema.get("properties", {}), schema.get("required")
    if not isinstance(listed, dict) or not isinstance(required, list):
        return schema
    further: dict[str, Any] = {name: {} for name in required if isinstance(name, str) and name not in listed}
    return {**schema, "properties": listed | further}


def _asks(keyword: str, value: Any) -> bool:
    if value is None:
        return keyword in ("const", "default")
    return value not in _NOTHING.get(keyword, ())


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without what is no JSON Schema, or contradicts itself."""
    by_name, kinds = schema.get("patternProperties"), schema.get("type", [])
    if isinstance(by_name, dict):
        schema["patternProperties"] = {name: by_name[name] for name in by_name if _compiles("pattern", name)}
    named = kinds if isinstance(kinds, list) else [kinds]
    if not all(isinstance(kind, str) and kind in _TYPES for kind in named):
        del schema["type"]
    return with_required(schema) if schema.get("additionalProperties") is False else schema


def _bound(schema: dict[str, Any], lenient: bool) -> None:
    for plain, exclusive, sign in (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1)):
        for name in (plain, exclusive):
            bound = schema.get(name)
            if not _is_number(bound) or abs(bound) <= _EXACT:
                continue
            del schema[name]
            inner = _below(sign * bound, name == exclusive)
            if inner >= -_MOST:
                other = schema.get(plain)
                schema[plain] = sign * (min(inner, sign * other) if _is_number(other) else inner)
            elif not lenient:
                raise GrammarError(f"{name!r} allows only numbers beyond 2**63")


def _below(bound: float, exclusive: bool) -> int:
    """The largest whole number that is a float, and is not above a bound beyond `_EXACT`."""
    held = int(max(-2 * _BEYOND, min(bound, 2 * _BEYOND)))  # it may be infinite
    most = min(held - exclusive, _MOST)
    near = float(most)
    return int(near if near <= most else math.nextafter(near, -math.inf))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(value: Any) -> bool:
    """Whether a constant has only numbers that the library reads and writes as they are."""
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    return not _is_number(value) or (-_BEYOND < value < _BEYOND and float(value) == value)


@functools.lru_cache(maxsize=4096)
def _compiles(keyword: str, value: str) -> bool:
    """Whether the library takes a `pattern` or a `format`."""
    schema = {"type": "string", keyword: value}
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
