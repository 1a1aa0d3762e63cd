"""Which keywords of JSON Schema are followed and which are refused: as docs/use.md has it in its table."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_text import grammar_text

ROWS = re.findall(
    r"^\| (any value|several schemas|objects|arrays|numbers|texts|`format`) \| (.*?) \| (.*?) ?\|$",
    (Path(__file__).parents[4] / "docs" / "use.md").read_text(),
    re.MULTILINE,
)
TOKENIZER = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
NONE: dict[str, Any] = {"type": "null"}
BOTH = {"a": NONE, "b": NONE}
EXAMPLES: dict[str, Any] = {
    "type": NONE,
    "enum": {"enum": [1, "a"]},
    "const": {"const": {"a": [None]}},
    "not": {"not": NONE},
    "if": {"if": NONE, "then": NONE, "else": {"type": "integer"}},
    "dependentSchemas": {
        "type": "object",
        "properties": BOTH,
        "dependentSchemas": {"a": {"required": ["b"]}},
    },
    "anyOf": {"anyOf": [NONE, {"type": "integer"}]},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    "oneOf": {"oneOf": [NONE, {"type": "integer"}]},
    "$ref": {"$ref": "#/$defs/a", "$defs": {"a": NONE}},
    "$defs": {"$ref": "#/$defs/a", "$defs": {"a": NONE}},
    "definitions": {"$ref": "#/definitions/a", "definitions": {"a": NONE}},
    "$anchor": {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}},
    "$dynamicRef": {"$dynamicRef": "#here", "$defs": {"a": {"$dynamicAnchor": "here"}}},
    "properties": {"type": "object", "properties": BOTH},
    "required": {"type": "object", "properties": BOTH, "required": ["b"]},
    "additionalProperties": {"type": "object", "additionalProperties": NONE},
    "patternProperties": {"type": "object", "patternProperties": {"^a": NONE}},
    "minProperties": {"type": "object", "properties": BOTH, "required": ["a", "b"], "minProperties": 3},
    "maxProperties": {"type": "object", "properties": BOTH, "required": ["a", "b"], "maxProperties": 3},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 2}},
    "dependentRequired": {"type": "object", "properties": BOTH, "dependentRequired": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "properties": BOTH, "unevaluatedProperties": False},
    "items": {"type": "array", "items": NONE},
    "prefixItems": {"type": "array", "prefixItems": [NONE, NONE]},
    "minItems": {"type": "array", "items": NONE, "minItems": 2},
    "maxItems": {"type": "array", "items": NONE, "maxItems": 2},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": NONE},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    **{name: {"type": "number", name: 3} for name in ("minimum", "maximum", "multipleOf")},
    **{name: {"type": "number", name: 3} for name in ("exclusiveMinimum", "exclusiveMaximum")},
    **{name: {"type": "string", name: 3} for name in ("minLength", "maxLength")},
    "pattern": {"type": "string", "pattern": "^a+$"},
}

VALUES: dict[str, tuple[Any, Any]] = {
    "type": (None, 1),
    "enum": ("a", 2),
    "const": ({"a": [None]}, {"a": [1]}),
    "anyOf": (3, "a"),
    "allOf": (4, 2),
    "oneOf": (None, "a"),
    **dict.fromkeys(("$ref", "$defs", "definitions", "$anchor"), (None, 1)),
    "properties": ({"a": None}, {"a": 1}),
    "required": ({"b": None}, {"a": None}),
    **dict.fromkeys(("additionalProperties", "patternProperties"), ({"ab": None}, {"ab": 1})),
    "minProperties": ({"a": None, "b": None, "c": 1}, {"a": None, "b": None}),
    "maxProperties": ({"a": None, "b": None, "c": 1}, {"a": None, "b": None, "c": 1, "d": 1}),
    "items": ([None], [1]),
    "prefixItems": ([None, None], [None, 1]),
    "minItems": ([None, None], [None]),
    "maxItems": ([None, None], [None, None, None]),
    **{"minimum": (3, 2), "maximum": (3, 4), "multipleOf": (6, 4)},
    **{"exclusiveMinimum": (4, 3), "exclusiveMaximum": (2, 3)},
    **{"minLength": ("aaa", "aa"), "maxLength": ("aaa", "aaaa"), "pattern": ("aa", "ab")},
    "date-time": ("2024-02-29T10:00:00Z", "2023-02-29T10:00:00Z"),
    **{"date": ("2024-02-29", "2023-02-29"), "time": ("10:00:00Z", "25:00:00Z")},
    **{"duration": ("P1D", "1D"), "email": ("a@b.cd", "a"), "hostname": ("a.b", "-a")},
    **{"ipv4": ("1.2.3.4", "1.2.3.256"), "ipv6": ("::1", ":1"), "uri": ("http://a.b/c", "a b")},
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
}
"""A value that follows the schema of each keyword, and one that breaks it."""


def listed(column: int) -> list[tuple[str, dict[str, Any]]]:
    """The keywords and formats of a column of the table, with a schema of each."""
    found = []
    for row in ROWS:
        names = re.findall(r"`([^`]+)`", row[column])
        if row[0] == "`format`":
            found += [(name, {"type": "string", "format": name}) for name in names]
        else:
            found += [(name, EXAMPLES[name]) for name in names if name != "properties" or row[0] == "objects"]
    return found


def named(value: object) -> str:
    """How a test is called: by its keyword."""
    return value if isinstance(value, str) else ""


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(SHIPPED_MODEL, 4096, [4])


def compiled(vocabulary: Vocabulary, schema: dict[str, Any], lenient: bool = False) -> bool:
    """Whether some answer follows the schema. Raises `GrammarError`."""
    matcher = vocabulary.matcher(grammar_text("json_schema", json.dumps(schema), lenient))
    return any(matcher.compute_bitmask()) and not matcher.is_error()


def allowed(vocabulary: Vocabulary, schema: dict[str, Any], value: Any) -> bool:
    """Whether a value, written as JSON, may be an answer in the shape of a schema."""
    matcher = vocabulary.matcher(grammar_text("json_schema", json.dumps(schema)))
    tokens = TOKENIZER.encode(json.dumps(value), add_special_tokens=False).ids
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 7
    in_table = {name for column in (1, 2) for name, _ in listed(column)}
    assert in_table >= EXAMPLES.keys()


@pytest.mark.parametrize(
    ("name", "schema"), listed(1), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_the_table_calls_followed(vocabulary: Vocabulary, name: str, schema: dict[str, Any]) -> None:
    good, bad = VALUES[name]
    assert allowed(vocabulary, schema, good)
    assert not allowed(vocabulary, schema, bad)


@pytest.mark.parametrize(
    ("name", "schema"), listed(2), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_the_table_calls_not_supported(
    vocabulary: Vocabulary, name: str, schema: dict[str, Any]
) -> None:
    with pytest.raises(GrammarError, match=re.escape(name)):
        compiled(vocabulary, schema)
    assert compiled(vocabulary, schema, lenient=True)


@pytest.mark.parametrize("name", ["minProperties", "maxProperties"])
def test_numbers_of_properties_need_all_of_them_required(vocabulary: Vocabulary, name: str) -> None:
    with pytest.raises(GrammarError, match="are required"):
        compiled(vocabulary, {"type": "object", "properties": BOTH, "required": ["a"], name: 2})


def test_schemas_that_may_hold_together_are_none_for_one_of(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError, match="oneOf of schemas that may hold together"):
        compiled(vocabulary, {"oneOf": [{"type": "integer"}, {"type": "number"}]})


def test_white_space_may_be_ruled_out(vocabulary: Vocabulary) -> None:
    schema = json.dumps({"type": "array", "items": {"type": "integer"}})
    for compact in (False, True):
        for text in ("[1,2]", "[1, 2]", "[1,\n2]"):
            matcher = vocabulary.matcher(grammar_text("json_schema", schema, compact=compact))
            tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
            follows = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            assert follows == (text == "[1,2]" or not compact)
