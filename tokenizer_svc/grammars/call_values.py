"""Arguments of calls that are not written as one JSON object: a grammar for each value of a JSON Schema.

Formats with JSON arguments leave their schema to the library. For the others this is the part of JSON
Schema that most functions use.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.date_formats import PATTERNS
from tokenizer_svc.grammars.grammar_rules import GrammarRules, quoted
from tokenizer_svc.grammars.regex_reader import plain_digits, slashed

Schema = Any
"""A JSON Schema: an object, true or false."""

ANNOTATIONS = frozenset(
    (
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    )
)
"""Keywords that say nothing about which values are valid."""
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_TEXT = frozenset(("minLength", "maxLength", "pattern", "format"))
OF_TYPE: Mapping[str, frozenset[str]] = {
    "string": _TEXT,
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
"""Keywords that are followed, by the type of value that they concern."""
_OTHERS = frozenset(("type", "enum", "const", "anyOf", "oneOf", "$ref"))
OBJECT = OF_TYPE["object"] | {"type", "$ref", "allOf"}
"""Keywords of the schema of all arguments that are followed."""
MOST_PARTS = 16
"""Schemas of one object that lead from one to another."""

# A number fits into a float, so that what is read can be written again.
INTEGER = r"/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?/"
_ESCAPE = r"\\([\"\\\/bfnrt]|u([0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
_FORMATS = PATTERNS | {
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{2,63}",
}


def spelled(value: object) -> str:
    """A value as JSON text, as models write it."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Dialect:
    """How values are written."""

    write: Callable[[object], Iterable[str]]
    """The texts for a constant."""
    string: str
    """Terminal of any string."""
    character: str
    """Regular expression of one character of a string whose length is bounded."""
    plain: str
    """That of one character that stands for itself."""
    true: str
    false: str
    null: str
    quotes: str = '"'
    """Characters between which a string may stand."""


def _json_texts(value: object) -> list[str]:
    return [spelled(value).replace("</", "<\\/").replace("<|", r"<\u007c")]


def _python_texts(value: object) -> list[str]:
    both = isinstance(value, str | bool | None)
    return list(dict.fromkeys((repr(value), spelled(value)) if both else (repr(value),)))


_JSON_PLAIN = r'[^"\\<\x00-\x1f\x7f]'
# Within XML the end of an element must not occur, `</…` or `<|…`: JSON can spell it as `<\/` and `<\u007c`.
JSON_IN_XML = Dialect(
    write=_json_texts,
    string=rf'/"([^"\\<\x00-\x1f\x7f]|{_ESCAPE}|<+([^"\\<\/|\x00-\x1f\x7f]|{_ESCAPE}))*<*"/',
    character=f"({_JSON_PLAIN}|{_ESCAPE})",
    plain=_JSON_PLAIN,
    true='"true"',
    false='"false"',
    null='"null"',
)
_PYTHON_ESCAPE = r"\\(['\"\\nrt]|u([0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
_PYTHON_PLAIN = r"""[^"'\\\x00-\x1f\x7f]"""
PYTHON = Dialect(
    write=_python_texts,
    string=(
        rf'/"([^"\\\x00-\x1f\x7f]|{_PYTHON_ESCAPE})*"/'
        rf" | /'([^'\\\x00-\x1f\x7f]|{_PYTHON_ESCAPE})*'/"
    ),
    character=f"({_PYTHON_PLAIN}|{_PYTHON_ESCAPE})",
    plain=_PYTHON_PLAIN,
    true='"True" | "true"',
    false='"False" | "false"',
    null='"None" | "null"',
    quotes="\"'",
)


class Values:
    """The values of one function's arguments."""

    def __init__(self, rules: GrammarRules, root: Schema, dialect: Dialect, lenient: bool) -> None:
        """`root`: the schema in which references are looked up. `lenient`: pass over unknown keywords."""
        self._rules, self._root, self._dialect, self._lenient = rules, root, dialect, lenient
        self._referred: dict[str, str] = {}
        self._anything = ""

    def of(self, schema: Schema) -> str:
        """The rule of a value. Raises `GrammarError` for what is not supported."""
        if schema is True:
            return self._any()
        if not isinstance(schema, dict):
            raise GrammarError("no value is valid" if schema is False else "a schema must be an object")
        self.check(schema, _OTHERS.union(*OF_TYPE.values()))
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        for name in ("anyOf", "oneOf"):
            if name in schema:
                # Which one a value follows does not matter: it is written, not validated.
                return self._rules.add(" | ".join(self.of(each) for each in listed(schema, name)))
        if "const" in schema or "enum" in schema:
            return self._rules.add(" | ".join(self._constant(each, schema) for each in constants_of(schema)))
        return self._of_types(schema)

    def check(self, schema: Mapping[str, Any], known: frozenset[str]) -> None:
        """Raises `GrammarError` if the schema has a keyword that is neither `known` nor an annotation."""
        for keyword in schema:
            if keyword not in known and keyword not in ANNOTATIONS and not self._lenient:
                raise GrammarError(f"{keyword!r} is not supported in this model's format of calls")

    def text(self, schema: Mapping[str, Any], character: str) -> list[str]:
        """Regular expressions that a string follows, each as a whole. `character`: that of one of its own."""
        found = []
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        if low or high is not None:
            found.append(f"{character}{{{count(low)},{'' if high is None else count(high)}}}")
        if "pattern" in schema:
            found.append(_whole(schema["pattern"]))
        if "format" in schema:
            pattern = _FORMATS.get(schema["format"]) if isinstance(schema["format"], str) else None
            if pattern is not None:
                found.append(pattern)
            elif not self._lenient:
                raise GrammarError(f"the format {schema['format']!r} is not supported for this model's calls")
        return found

    def members(self, schema: Mapping[str, Any]) -> list[tuple[str, Schema, bool]]:
        """Names, schemas and needs of an object's properties, in their order.

        Those that `$ref` and `allOf` list are among them, and if it is lenient, those of choices, too.
        """
        return [(name, *found) for name, found in self._members(schema, MOST_PARTS).items()]

    def _members(self, schema: Mapping[str, Any], left: int) -> dict[str, tuple[Schema, bool]]:
        """`left`: schemas that lead from one to another at most."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise GrammarError("'properties' must be an object, and 'required' a list")
        if not all(isinstance(name, str) for name in required):
            raise GrammarError("'required' must be a list of names")
        other = schema.get("additionalProperties", True)
        properties = properties | {name: other for name in required if name not in properties}
        found = {name: (each, name in required) for name, each in properties.items()}
        for part, holds in self._parts(schema) if left else ():
            self.check(part, OBJECT)
            for name, (each, needed) in self._members(part, left - 1).items():
                own, was_needed = found.get(name, (True, False))
                found[name] = (each if own is True else own, was_needed or (needed and holds))
        return found

    def _parts(self, schema: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """Further schemas of the same value, and whether it follows each."""
        parts = [(self.resolved(schema["$ref"]), True)] if "$ref" in schema else []
        parts += [(each, True) for each in (listed(schema, "allOf") if "allOf" in schema else ())]
        for name in ("anyOf", "oneOf"):
            parts += [(each, False) for each in (listed(schema, name) if name in schema else ())]
        return ((part, holds) for part, holds in parts if isinstance(part, dict))

    def separated(self, items: list[tuple[str, bool]], between: str, further: str = "") -> str:
        """Items in their order. Each has its rule, and whether it must be there.

        `further`: the rule of others, of which any number may come after these.
        """
        rest, first = '""', '""'
        if further:
            rest = self._rules.add(f"({between} {further})*")
            first = self._rules.add(f"({further} {rest})?")
        for item, needed in reversed(items):
            # Items from this one on: as `first` if there is none before it, else, with `between`, as `rest`.
            first = self._rules.add(f"{item} {rest}" + ("" if needed else f" | {first}"))
            rest = self._rules.add(f"{between} {item} {rest}" + ("" if needed else f" | {rest}"))
        return first

    def _reference(self, pointer: object) -> str:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise GrammarError(f"{pointer!r} is not within the schema")
        if pointer not in self._referred:
            place = self._rules.declare()
            self._referred[pointer] = f"r{place}"
            self._rules.set(place, self.of(self.resolved(pointer)))
        return self._referred[pointer]

    def resolved(self, pointer: str) -> Schema:
        """What a reference within the schema means."""
        found = self._root
        for part in pointer.removeprefix("#").split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise GrammarError(f"{pointer!r} is not within the schema")
            found = found[key]
        return found

    def _of_types(self, schema: Mapping[str, Any]) -> str:
        kinds = schema.get("type", [kind for kind, words in OF_TYPE.items() if words & schema.keys()])
        if not kinds:
            return self._any()
        makers: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "string": self._string,
            "integer": lambda each: self._number(each, INTEGER),
            "number": lambda each: self._number(each, NUMBER),
            "boolean": lambda _: f"{self._dialect.true} | {self._dialect.false}",
            "null": lambda _: self._dialect.null,
            "array": self._array,
            "object": self._object,
        }
        found = []
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind not in makers:
                raise GrammarError(f"{kind!r} is not a type")
            found.append(makers[kind](schema))
        return self._rules.add(" | ".join(found))

    def _string(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            # Its characters would have to be escaped.
            self.check({"pattern": 0}, frozenset())
            schema = {key: value for key, value in schema.items() if key != "pattern"}
        if not (bounds := self.text(schema, self._dialect.character)):
            return self._dialect.string
        quotes = self._dialect.quotes
        found = (" & ".join(f"/{quote}({each}){quote}/" for each in bounds) for quote in quotes)
        return self._rules.add(" | ".join(f"({each})" for each in found), terminal=True)

    def _number(self, schema: Mapping[str, Any], plain: str) -> str:
        bounds = {name: schema[name] for name in _BOUNDS & schema.keys()}
        if not bounds:
            return plain
        kind = "integer" if plain is INTEGER else "number"
        return "%json " + json.dumps({"type": kind} | bounds)

    def _array(self, schema: Mapping[str, Any]) -> str:
        low, high = count(schema.get("minItems", 0)), schema.get("maxItems")
        if high is not None and (count(high) < low or high == 0):
            if low == 0:
                return '"[]"'
            raise GrammarError("'maxItems' is below 'minItems'")
        item = self.of(schema.get("items", True))
        more = self._rules.add(f"/, ?/ {item}")
        times = f"{{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        some = f'"[" {item} {more}{times} "]"' if high != 1 else f'"[" {item} "]"'
        return some if low else f'{some} | "[]"'

    def _object(self, schema: Mapping[str, Any]) -> str:
        members = self.members(schema)
        items = []
        for name, each, needed in members:
            if each is False:
                continue
            items.append((self._rules.add(f"({self._key(name)}) /: ?/ {self.of(each)}"), needed))
        further = self._further([name for name, *_ in members], schema.get("additionalProperties", True))
        return f'"{{" {self.separated(items, "/, ?/", further)} "}}"'

    def _further(self, listed: list[str], schema: Schema) -> str:
        """The rule of a property that has none of the names listed; "" where there may be none."""
        return (
            "" if schema is False else self._rules.add(f"({self._other_key(listed)}) /: ?/ {self.of(schema)}")
        )

    def _constant(self, value: object, schema: Schema = True) -> str:
        """What a constant is written as. `schema`: of which it is a value."""
        return " | ".join(map(quoted, self._dialect.write(value)))

    def _key(self, name: str) -> str:
        """What a property's name is written as."""
        return self._constant(name)

    def _other_key(self, listed: list[str]) -> str:
        """Any name of a property but those."""
        key = self._dialect.string
        if listed:
            # Without escapes: these could spell a name that is listed.
            quotes = self._dialect.quotes
            names = " | ".join(quoted(f"{quote}{name}{quote}") for quote in quotes for name in listed)
            spelled = " | ".join(f"/{quote}{self._dialect.plain}*{quote}/" for quote in quotes)
            key = self._rules.add(f"({spelled}) & ~({names})", terminal=True)
        return key

    def _any(self) -> str:
        if not self._anything:
            place = self._rules.declare()
            value = self._anything = f"r{place}"
            dialect, key = self._dialect, self._rules.add(self._other_key([]))
            kinds = [
                self._rules.add(dialect.string),
                NUMBER,
                dialect.true,
                dialect.false,
                dialect.null,
                f'"[" ({value} (/, ?/ {value})*)? "]"',
                f'"{{" ({key} /: ?/ {value} (/, ?/ {key} /: ?/ {value})*)? "}}"',
            ]
            self._rules.set(place, " | ".join(kinds))
        return self._anything


def is_text(schema: Schema) -> bool:
    """Whether it says by itself that its values are texts."""
    return isinstance(schema, dict) and schema.get("type") == "string"


def constants_of(schema: Mapping[str, Any]) -> list[Any]:
    """The values that `const` or `enum` allows."""
    return [schema["const"]] if "const" in schema else listed(schema, "enum")


def texts_allowed(schema: Mapping[str, Any]) -> list[str]:
    """The same of a schema of texts. Raises `GrammarError` if one of them is none."""
    values = constants_of(schema)
    if not all(isinstance(each, str) for each in values):
        raise GrammarError("'enum' must be a list of texts")
    return values


def listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    """A keyword whose value is a list. Raises `GrammarError` for another one."""
    value = schema[name]
    if not isinstance(value, list) or not value:
        raise GrammarError(f"'{name}' must be a list that is not empty")
    return value


def count(value: object) -> int:
    """A bound of lengths. Raises `GrammarError` for what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GrammarError(f"{value!r} is not a number of characters or items")
    return value


def _whole(pattern: object) -> str:
    """A `pattern`, which may match anywhere, as one that matches a whole text."""
    if not isinstance(pattern, str):
        raise GrammarError("'pattern' must be a text")
    begin = "" if pattern.startswith("^") else r"(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith(r"\$") else r"(?s:.*)"
    body = pattern.removeprefix("^")
    body = body if end else body.removesuffix("$")
    return f"{begin}({slashed(plain_digits(body))}){end}"
