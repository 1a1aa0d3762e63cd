"""Random JSON Schemas of every keyword that answers follow.

Each schema has values. Texts and digits are bounded, as a small model may go on with them for ever.
"""

import random
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

NAMES = ("name", "kind", "count", "tags", "next", "size")
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
PATTERNS = (r"^[a-f]{2,6}$", r"^(fox|owl)-[0-9]{1,3}$", r"^[^\s]{1,8}$", r"^\d{4}$", r"[xyz]$")
CHOICES = ("fox", "owl", 'a "quoted" one', "", 7, -1.5, True, False, None, [1, "two"], {"a": None})
DEEPEST = 3
"""Objects and arrays within each other."""
FOLLOWED = frozenset(
    (
        *("type", "enum", "const", "$ref", "$defs", "anyOf", "oneOf", "allOf"),
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("minProperties", "maxProperties", "items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
"""Keywords that are drawn."""


def drawn(chance: random.Random) -> Schema:
    """A schema, with the keywords of `FOLLOWED` alone."""
    return _Draw(chance).schema()


def keywords(schema: object) -> Iterator[str]:
    """The keywords of a schema and of the schemas within it, each as often as it occurs."""
    if isinstance(schema, list):
        for each in schema:
            yield from keywords(each)
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        yield name
        if name in ("properties", "patternProperties", "$defs"):
            yield from keywords(list(value.values()))
        elif name not in ("enum", "const", "required"):
            yield from keywords(value)


class _Draw:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._recursive = False

    def schema(self) -> Schema:
        schema = self._any(0)
        if not self._recursive:
            return schema
        # A list that ends somewhere: most of its ends are near.
        end: Schema = {"anyOf": [{"type": "null"}, {"type": "null"}, {"$ref": "#/$defs/node"}]}
        node = self._closed({"value": self._single(), "next": end}, ["value", "next"])
        return {**schema, "$defs": {"node": node}}

    def _any(self, depth: int) -> Schema:
        kinds = [self._single, self._single]
        if depth < DEEPEST:
            kinds += [lambda: self._object(depth)] * 3 + [lambda: self._array(depth)] * 2
            kinds += [lambda: self._several(depth), self._node]
        return self._chance.choice(kinds)()

    def _single(self) -> Schema:
        """A value without parts."""
        kinds = (self._integer, self._number, self._text, self._text, self._choice, self._plain)
        return self._chance.choice(kinds)()

    def _plain(self) -> Schema:
        return self._chance.choice(
            ({"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"], "maxLength": 6})
        )

    def _choice(self) -> Schema:
        if self._chance.random() < 0.3:
            return {"const": self._chance.choice(CHOICES)}
        return {"enum": self._chance.sample(CHOICES, self._chance.randint(1, 4))}

    def _integer(self) -> Schema:
        low = self._chance.randint(-1000, 1000)
        high = low + self._chance.randint(20, 500)
        bounds: list[Schema] = [
            {"minimum": low, "maximum": high},
            {"exclusiveMinimum": low, "exclusiveMaximum": high},
            {"minimum": low, "maximum": high, "multipleOf": self._chance.choice((2, 5, 7))},
            {"minimum": 0, "exclusiveMaximum": 1_000_000},
        ]
        return {"type": "integer", **self._chance.choice(bounds)}

    def _number(self) -> Schema:
        low = self._chance.randint(-50, 50) / 4
        bounds: list[Schema] = [
            {"minimum": low, "maximum": low + 10},
            {"exclusiveMinimum": low, "exclusiveMaximum": low + 1},
        ]
        return {"type": "number", **self._chance.choice(bounds), "multipleOf": 0.25}

    def _text(self) -> Schema:
        least = self._chance.randint(0, 4)
        bounds: list[Schema] = [
            {"minLength": least, "maxLength": least + self._chance.randint(0, 8)},
            {"maxLength": 12},
            {"pattern": self._chance.choice(PATTERNS), "maxLength": 12},
            {"format": self._chance.choice(FORMATS), "maxLength": 40},
        ]
        return {"type": "string", **self._chance.choice(bounds)}

    def _array(self, depth: int) -> Schema:
        least, more = self._chance.randint(0, 2), self._chance.randint(0, 2)
        if self._chance.random() < 0.3:
            first = [self._any(depth + 1) for _ in range(self._chance.randint(1, 3))]
            rest: Any = self._chance.choice((False, self._single()))
            bounds = {} if rest is False else {"maxItems": len(first) + 1}
            return {"type": "array", "prefixItems": first, "items": rest, **bounds}
        bounds = {"minItems": least, "maxItems": least + more}
        return {"type": "array", "items": self._any(depth + 1), **bounds}

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(NAMES, self._chance.randint(1, 4))
        parts = {name: self._any(depth + 1) for name in names}
        required = self._chance.sample(names, self._chance.randint(0, len(names)))
        kind = self._chance.random()
        if kind < 0.6:
            return self._closed(parts, required)
        if kind < 0.8:
            # Bounds of their number are followed only where all that are listed are required.
            rest = {"additionalProperties": self._single(), "maxProperties": len(names) + 1}
            return {"type": "object", "properties": parts, "required": names, **rest}
        if kind < 0.9:
            own = {"patternProperties": {"^[xy]_": self._single()}, "additionalProperties": False}
            return {"type": "object", **own, "minProperties": 1, "maxProperties": 3}
        return {"type": "object", "additionalProperties": self._any(depth + 1), "maxProperties": 2}

    def _closed(self, parts: Schema, required: list[str]) -> Schema:
        closed = {"type": "object", "properties": parts, "additionalProperties": False}
        return {**closed, "required": required} if required else closed

    def _several(self, depth: int) -> Schema:
        """One of several schemas, or all of several."""
        kind = self._chance.randrange(3)
        if kind == 0:
            return {"anyOf": [self._any(depth + 1) for _ in range(self._chance.randint(2, 3))]}
        if kind == 1:  # of different types, so that one of them holds and not two
            return {"oneOf": [self._integer(), self._text(), {"type": "null"}, self._array(depth)]}
        return {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": self._chance.randint(20, 90)}]}

    def _node(self) -> Schema:
        self._recursive = True
        return {"$ref": "#/$defs/node"}
