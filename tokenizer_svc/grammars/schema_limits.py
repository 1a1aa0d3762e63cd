"""JSON Schemas as the library follows them exactly.

It reads numbers as floats of 64 bits, in which whole numbers beyond 2**53 become others. It takes no bound of
2**63 or more, no character in a `$ref` that a URI does not have, and no pattern with lookarounds. So a schema
is spelled in another way that allows no other value. What cannot be spelled is refused, or passed over where
the schema need not be followed.
"""

import functools
import math
from typing import Any, TypeGuard
from urllib.parse import quote

from llguidance import LLMatcher

from ops.runtime.grammars import GrammarError
from tokenizer_svc.grammars.date_formats import narrowed
from tokenizer_svc.grammars.schema_walk import mapped

_EXACT = 2**53
"""Up to this each whole number is a float."""
_BEYOND = 2**63
_MOST = 2**63 - 1024
"""The largest float below `_BEYOND`."""
_URI = "%#/:?&=+,;@!$'()*~.-_"
_SAME = {r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$"}
"""Patterns without lookarounds that match the same texts. That of a `Decimal`, as pydantic writes it."""


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
    """The JSON Schema with such bounds of numbers and such patterns as the library takes.

    Raises `GrammarError` and `RecursionError`. `lenient`: as in `followed`.
    """

    def changed(each: dict[str, Any]) -> dict[str, Any]:
        _bound(each, lenient)
        if isinstance(each.get("pattern"), str):
            each["pattern"] = _SAME.get(each["pattern"], each["pattern"])
            if lenient and not _compiles(each["pattern"]):
                del each["pattern"]
        by_name = each.get("patternProperties")
        if lenient and isinstance(by_name, dict):
            each["patternProperties"] = {name: by_name[name] for name in by_name if _compiles(name)}
        return each

    return mapped(schema, changed)


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
def _compiles(pattern: str) -> bool:
    schema = {"type": "string", "pattern": pattern}
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
