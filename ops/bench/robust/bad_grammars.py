"""Grammars that are malformed, or that a library could choke on: huge, nested, ambiguous, circular.

A malformed one must be refused. The others may be followed instead, if they are within the limits.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

STRING = {"type": "string"}


@dataclass(frozen=True)
class Bad:
    """One of them."""

    name: str
    fields: dict[str, Any]
    """Of the request that asks for it."""
    malformed: bool = False

    @property
    def param(self) -> str:
        """The field that a refusal must name."""
        return next(iter(self.fields))


def bad_grammars(number: int) -> list[Bad]:
    """All of them. Each `number` makes others, which no cache has."""
    return [
        *(_regex(name, text, number) for name, text in _REGEXES.items()),
        *(_regex(name, text, number, malformed=True) for name, text in _BROKEN_REGEXES.items()),
        *(_lark(name, text, number) for name, text in _grammars()),
        *(_lark(name, text, number, malformed=True) for name, text in _BROKEN_GRAMMARS.items()),
        *(_schema(name, schema, number) for name, schema in _schemas()),
        *(_schema(name, schema, number, malformed=True) for name, schema in _BROKEN_SCHEMAS.items()),
        *_others(number),
    ]


def _regex(name: str, text: str, number: int, malformed: bool = False) -> Bad:
    return Bad(f"regex: {name}", {"guided_regex": f"({text})|{number}"}, malformed)


def _lark(name: str, text: str, number: int, malformed: bool = False) -> Bad:
    grammar = f'{text}\nunused_{number}: "{number}"\n'
    return Bad(f"grammar: {name}", {"structured_outputs": {"grammar": grammar}}, malformed)


def _schema(name: str, schema: dict[str, Any], number: int, malformed: bool = False) -> Bad:
    named = {"name": "bad", "schema": schema | {"title": str(number)}, "strict": True}
    return Bad(
        f"schema: {name}", {"response_format": {"type": "json_schema", "json_schema": named}}, malformed
    )


_REGEXES = {
    "nested repetitions": "(((a{1,99}b?){1,99}c?){1,99}d?){1,99}",
    "repetition of a repetition": "(a+)+(a+)+(a+)+b",
    "ambiguous alternatives": "(a|aa|aaa)+b",
    "a million characters": "a{1000000}",
    "long repetition of alternatives": "(ab|cd|ef){50000}",
    "a state for each subset": "(a|b)*a(a|b){200}",
    "a state for each order": "".join(f"(.*{letter})" for letter in "abcdefghijklmnopqrstuvwxyz"),
    "all of Unicode": r"(\p{L}{1,40}[\p{N}\p{P}]{1,40}){40}",
    "eight thousand words": "|".join(f"w{each}x" for each in range(8000)),
    "deeply nested": "(" * 150 + "a" + ")*" * 150,
}
_BROKEN_REGEXES = {
    "not closed": "a(b",
    "look-around": "(?=a)b",
    "back reference": r"(a)\1",
    "a range backwards": "[z-a]",
    "a repetition backwards": "a{5,2}",
    "thousands of brackets": "(" * 5000 + ")" * 5000,
}


def _grammars() -> Iterator[tuple[str, str]]:
    yield "left recursion", 'start: start "a" | start start | "b"'
    yield "a circle of empty rules", 'start: a\na: b a | c\nb: c a | ""\nc: b | a | ""'
    yield "rules that double", _doubling("r", 40)
    yield "terminals that double", _doubling("T", 40)
    yield "repetition of a rule", 'start: a{1,60000}\na: "x" | "y" a'
    yield "nested repetitions", 'start: a{0,99}\na: b{0,99}\nb: c{0,99}\nc: "x"{0,99}'
    yield "five thousand alternatives", "start: " + " | ".join(f'"w{each}"' for each in range(5000))
    yield (
        "terminals that overlap",
        "start: (A | B | C)*\n" + "".join(f"{name}: /.*{name}.{{50}}/\n" for name in "ABC"),
    )
    text = "the quick brown fox jumps over the lazy dog " * 5
    yield (
        "ambiguity behind a long text",
        f'start: "{text}" a{{0,99}}\na: b{{0,99}}\nb: c{{0,99}}\nc: "x"{{0,99}}',
    )
    yield (
        "words behind a long text",
        f'start: "{text}" w\nw: ' + " | ".join(f'"w{each}"' for each in range(5000)),
    )
    yield "every tree of every text", "start: s\ns: /[a-z]/ | s s | s s s"
    yield "ambiguous sums", 'start: e\ne: e "+" e | e "*" e | e e | "(" e ")" | /[0-9]+/'


def _doubling(letter: str, depth: int) -> str:
    """The last rule of the grammar is used 2 ** `depth` times."""
    rules = [f"{letter}{each}: {letter}{each + 1} {letter}{each + 1}" for each in range(depth)]
    return "\n".join([f"start: {letter}0", *rules, f'{letter}{depth}: "x"'])


_BROKEN_GRAMMARS = {
    "not closed": 'start: (("a"',
    "an unknown rule": 'start: a\na: "x" nowhere',
    "no start": 'begin: "a"',
    "no end": 'start: "a" start',
    "a terminal of itself": 'start: A\nA: "a" A | "b"',
    "a broken regex": "start: A\nA: /(a/",
    "thousands of brackets": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
}


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "nested arrays", reduce(lambda inner, _: {"type": "array", "items": inner}, range(30), STRING)
    yield (
        "nested objects",
        reduce(lambda inner, _: {"type": "object", "properties": {"a": inner}}, range(30), STRING),
    )
    yield (
        "alternatives of alternatives",
        reduce(lambda each, _: {"anyOf": [each, _object(each)]}, range(5), STRING),
    )
    yield (
        "a product of alternatives",
        {"allOf": [{"anyOf": [_key(n, m) for m in range(4)]} for n in range(12)]},
    )
    yield "recursion in all directions", {"$ref": "#/$defs/a", "$defs": {"a": _recursive(20)}}
    yield "a thousand fields", {"type": "object", "properties": {f"field {n}": STRING for n in range(1000)}}
    yield "an enum of thousands", {"enum": [f"value {n}" for n in range(3000)]}
    yield "long arrays", {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}
    yield "long strings", STRING | {"minLength": 10**6, "maxLength": 10**9}
    yield "small steps", {"type": "number", "multipleOf": 1e-9, "minimum": -1e300, "maximum": 1e300}
    yield (
        "patterns of patterns",
        {"type": "object", "patternProperties": {f"^(.*{n}){{9}}$": STRING for n in range(60)}},
    )
    yield "a slow pattern", STRING | {"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 3000}


def _object(inner: dict[str, Any], _: int = 0) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner, "b": inner}, "required": ["a"]}


def _key(number: int, value: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{number}": {"enum": [value]}}, "required": [f"{number}"]}


def _recursive(count: int) -> dict[str, Any]:
    properties = {f"{number}": {"$ref": "#/$defs/a"} for number in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": {"$ref": "#/$defs/a"}}


_BROKEN_SCHEMAS: dict[str, dict[str, Any]] = {
    "an unknown type": {"type": "strin"},
    "a circle of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "a reference to nothing": {"$ref": "#/$defs/nothing"},
    "a reference elsewhere": {"$ref": "http://127.0.0.1:1/schema.json"},
    "bounds the wrong way round": {"type": "integer", "minimum": 5, "maximum": 3},
    "a broken pattern": STRING | {"pattern": "a("},
    "a keyword that is not followed": {"not": STRING},
}


def _others(number: int) -> Iterator[Bad]:
    words = [f"word {each} {number}" for each in range(3000)]
    yield Bad("choice: of thousands", {"guided_choice": words})
    yield Bad("choice: of nothing", {"guided_choice": []}, malformed=True)
    tag = {"begin": "<a>", "schema": {"type": "strin", "title": str(number)}, "end": "</a>"}
    tags = {"structures": [tag], "triggers": ["<a"]}
    yield Bad(
        "tag: a broken schema", {"structured_outputs": {"structural_tag": json.dumps(tags)}}, malformed=True
    )
    yield Bad("any: beyond the longest", {"guided_regex": "a" * 70_000 + str(number)}, malformed=True)
    hard = {
        "type": "object",
        "properties": {"a": STRING | {"pattern": f"^(a|b)*a(a|b){{{150 + number % 50}}}$"}},
    }
    for name, schema, malformed in (
        ("a slow schema", hard, False),
        ("a broken schema", {"type": "strin"}, True),
    ):
        function = {"name": f"f{number}", "parameters": schema, "strict": True}
        tools = [{"type": "function", "function": function}]
        yield Bad(f"calls: {name}", {"tools": tools, "tool_choice": "required"}, malformed)
