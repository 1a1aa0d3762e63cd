"""Values that are not written as one JSON object: each reads as a value that its schema allows."""

import ast
import json
from typing import Any

import pytest

from ops.model_directory.grammars import GrammarError
from tests.unit.tokenizer_svc.grammars.test_call_grammar import Model, model
from tokenizer_svc.grammars.call_values import JSON_IN_XML, PYTHON, Dialect, Values
from tokenizer_svc.grammars.grammar_rules import GrammarRules

__all__ = ["model"]

TAKEN: list[tuple[Any, list[object], list[object]]] = [
    (True, [1, "a", None, True, [1, [2]], {"a": {"b": []}}], []),
    ({}, [{"a": 1}], []),
    ({"type": "string"}, ["", "a \"b' \\ é", "</p>"], [1, None]),
    ({"type": "string", "maxLength": 2}, ["", "ab", "é\n"], ["abc"]),
    ({"type": "string", "format": "date"}, ["2026-11-22"], ["22.11.2026"]),
    ({"type": "integer", "minimum": 5}, [5, 100], [4, 5.5]),
    ({"type": "number"}, [1, -2.5, 1e21], ["1"]),
    ({"const": {"a": [None, "x"]}}, [{"a": [None, "x"]}], [{"a": []}]),
    ({"type": ["integer", "null"]}, [1, None], ["a", 1.5]),
    ({"oneOf": [{"const": 1}, {"type": "boolean"}]}, [1, True], [2]),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        [[1], [1, 2]],
        [[], [1, 2, 3]],
    ),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    (
        {"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]},
        [{"b": 1}, {"a": 1, "b": 1, "c": 1}, {"b": 1, "d": 1, "aa": {}}, {"a": 1, "b": 1, "": 1}],
        [{"a": 1}, {}, {"d": 1}, {"b": 1, "a": 1}, {"b": 1, "d": 1, "c": 1}],
    ),
    (
        {"properties": {"a": {}, "no": False}, "additionalProperties": {"type": "integer"}},
        [{}, {"a": "x"}, {"d": 1}, {"a": None, "d": 1, "e": 2}],
        [{"d": "x"}, {"no": 1}, {"d": 1, "a": 1}],
    ),
    ({"properties": {"it's": {}}, "additionalProperties": False}, [{"it's": 1}, {}], [{"its": 1}]),
    ({"type": "object", "additionalProperties": False}, [{}], [{"a": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1, "b": 2}], [{"a": "x"}]),
    ({"$ref": "#/$defs/a~1b"}, [[], [[[]], []]], [1]),
]
ROOT = {"$defs": {"a/b": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}}}}


@pytest.mark.parametrize("dialect", [JSON_IN_XML, PYTHON], ids=["json", "python"])
@pytest.mark.parametrize("schema, good, bad", TAKEN)  # noqa: PT006
def test_values_that_a_schema_allows(
    model: Model, dialect: Dialect, schema: Any, good: Any, bad: Any
) -> None:
    write, read = (repr, ast.literal_eval) if dialect is PYTHON else (json.dumps, json.loads)
    rules = GrammarRules()
    value = Values(rules, ROOT, dialect, lenient=False).of(schema)
    grammar = "\n".join(("%llguidance {}", f"start: {value}", *rules.lines))
    for each in (*good, *bad):
        text = write(each).replace("</", "<\\/") if dialect is JSON_IN_XML else write(each)
        if dialect is JSON_IN_XML:
            text = text.replace("\\u00e9", "é")
        assert read(text) == each
        assert model.accepts(grammar, text) is (each in good), text


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (False, "no value is valid"),
        (5, "must be an object"),
        ({"$ref": "http://127.0.0.1/x"}, "not within the schema"),
        ({"$ref": "#/$defs/b"}, "not within the schema"),
        ({"uniqueItems": True}, "'uniqueItems' is not supported"),
        ({"type": "string", "pattern": "a"}, "'pattern' is not supported"),
        ({"type": "string", "format": "colour"}, "format 'colour'"),
        ({"type": "string", "maxLength": -1}, "-1 is not a number"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "below"),
        ({"type": "strin"}, "'strin' is not a type"),
        ({"enum": []}, "a list that is not empty"),
        ({"properties": []}, "must be an object"),
        ({"properties": {}, "required": [5]}, "a list of names"),
    ],
)
def test_what_cannot_be_followed_is_told(schema: Any, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        Values(GrammarRules(), ROOT, PYTHON, lenient=False).of(schema)


def test_an_escaped_line_break_of_a_pattern_is_one() -> None:
    values = Values(GrammarRules(), ROOT, PYTHON, lenient=False)
    assert values.text({"pattern": "^a\\\n/$"}, "(?s:.)") == [r"(a\n\/)"]


@pytest.mark.parametrize("dialect", [JSON_IN_XML, PYTHON], ids=["json", "python"])
def test_a_further_property_does_not_spell_a_listed_one_otherwise(model: Model, dialect: Dialect) -> None:
    rules = GrammarRules()
    value = Values(rules, {}, dialect, lenient=False).of({"properties": {"a": {"type": "integer"}}})
    grammar = "\n".join(("%llguidance {}", f"start: {value}", *rules.lines))
    assert model.accepts(grammar, '{"a": 1, "b": "x"}')
    for text in ('{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "a": "x"}', '{"b": 1, "\\u0061": "x"}'):
        assert not model.accepts(grammar, text), text
    assert model.accepts(grammar, "{'b': 1}") is (dialect is PYTHON)
    assert not model.accepts(grammar, "{'a': 'x'}")


def test_a_raw_string_s_pattern(model: Model) -> None:
    values = Values(GrammarRules(), {}, JSON_IN_XML, lenient=False)
    for pattern, good, bad in (
        ("^a/b$", "a/b", "xa/b"),
        ("a/b", "xa/by", "ab"),
        (r"^[^\n/]+", "a\nb", "/"),
        (r"^\d[\d.]$", "1.", "٣."),
    ):
        (found,) = values.text({"pattern": pattern}, "")
        assert model.accepts(f"%llguidance {{}}\nstart: /{found}/", good), pattern
        assert not model.accepts(f"%llguidance {{}}\nstart: /{found}/", bad), pattern
