"""Objects of a JSON Schema that lists their properties have no others."""

import json
from typing import Any

import pytest

from ops.model_directory.grammars import Vocabulary
from tests.unit.tokenizer_svc.grammars.test_grammar_text import NONE, compiled, vocabulary
from tests.unit.tokenizer_svc.grammars.test_schema_limits import allowed
from tokenizer_svc.grammars.schema_closed import closed

__all__ = ["vocabulary"]

A: dict[str, Any] = {"type": "object", "properties": {"a": NONE}}
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
        {"allOf": [A, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
        {"oneOf": [A, NONE]},
        A | {"$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {"type": "integer"}}}}},
    ],
    ids=str,
)
def test_what_says_more_stays(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    assert closed(json.loads(json.dumps(schema))) == schema
    assert allowed(vocabulary, schema, MORE)


def test_names_are_no_keywords(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"allOf": NONE, "properties": A}}
    assert closed(schema)["additionalProperties"] is False
    assert compiled(vocabulary, schema)
