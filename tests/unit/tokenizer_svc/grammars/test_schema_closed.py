"""Objects of a JSON Schema that lists their properties have no others."""

import json
from typing import Any

import pytest

from ops.model_directory.grammars import Vocabulary
from tests.unit.tokenizer_svc.grammars.test_grammar_text import NONE, compiled, vocabulary
from tests.unit.tokenizer_svc.grammars.test_schema_limits import allowed, takes
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.grammars.schema_closed import closed

__all__ = ["vocabulary"]

A: dict[str, Any] = {"type": "object", "properties": {"a": NONE}}
B: dict[str, Any] = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
MORE = '{"a": null, "b": 1}'


def test_who_lists_properties_means_these(vocabulary: Vocabulary) -> None:
    """Also within, and with what is required and not listed."""
    for schema, within in ((A, "%s"), ({"type": "array", "items": A}, "[%s]"), ({"anyOf": [A, NONE]}, "%s")):
        assert allowed(vocabulary, schema, within % '{"a": null}')
        assert not allowed(vocabulary, schema, within % MORE)
    schema = A | {"required": ["a", "b"]}
    assert allowed(vocabulary, schema, MORE)
    assert not allowed(vocabulary, schema, '{"a": null, "b": 1, "c": 1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "integer"}},
        A | {"patternProperties": {"^b": {}}},
        A | {"required": ["a"], "minProperties": 2},
        {"allOf": [A, B]},
        {"oneOf": [A, NONE]},
        A | {"$ref": "#/$defs/b", "$defs": {"b": B}},
        {"$ref": "#/$defs/a", "anyOf": [B], "$defs": {"a": A}},
        {"allOf": [A], "anyOf": [B]},
    ],
    ids=str,
)
def test_what_says_more_stays(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    assert closed(json.loads(json.dumps(schema))) == schema
    assert allowed(vocabulary, schema, MORE)


def test_a_property_may_have_two_schemas(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": A}, "patternProperties": {"^a": B}}
    assert closed(schema) == schema
    assert allowed(vocabulary, schema, f'{{"a": {MORE}}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [A], "title": "one schema, as pydantic 2.0 writes a field with a default value"},
        A | dict.fromkeys(("allOf", "oneOf", "anyOf", "$ref", "additionalProperties", "maxProperties")),
    ],
    ids=("allOf", "null"),
)
def test_what_says_nothing_more_is_closed(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    assert allowed(vocabulary, schema, '{"a": null}')
    assert not allowed(vocabulary, schema, MORE)


def test_also_within_a_structural_tag(vocabulary: Vocabulary) -> None:
    tag = json.dumps({"format": {"type": "json_schema", "json_schema": A}})
    grammar = grammar_text("structural_tag", tag)
    assert takes(vocabulary, grammar, '{"a": null}')
    assert not takes(vocabulary, grammar, MORE)


def test_a_keyword_that_is_not_followed_may_say_the_same() -> None:
    assert closed(A | {"unevaluatedProperties": False})["additionalProperties"] is False
    for more in ({"unevaluatedProperties": {}}, {"dependentSchemas": {"a": B}}):
        assert closed(A | more) == A | more


def test_names_are_no_keywords(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"allOf": NONE, "properties": A}}
    assert closed(schema)["additionalProperties"] is False
    assert compiled(vocabulary, schema)
