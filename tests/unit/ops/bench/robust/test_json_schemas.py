"""Random JSON Schemas: each is one, can be followed, and all keywords occur."""

import json
import random

import jsonschema_rs
import pytest

from ops.bench.robust.json_schemas import FOLLOWED, drawn, keywords
from ops.model_directory.grammars import Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_text import grammar_text

SCHEMAS = [drawn(random.Random(f"test {number}")) for number in range(100)]


def test_all_keywords_occur_and_no_other() -> None:
    assert {name for schema in SCHEMAS for name in keywords(schema)} == FOLLOWED


def test_the_same_seed_draws_the_same() -> None:
    assert [drawn(random.Random(f"test {number}")) for number in range(10)] == SCHEMAS[:10]


def test_keywords_are_told_from_names_and_values() -> None:
    schema = {
        "properties": {"const": {"enum": [{"maxItems": 1}]}, "b": {"anyOf": [{"type": "null"}]}},
        "$defs": {"pattern": {"items": False}},
    }
    assert sorted(keywords(schema)) == ["$defs", "anyOf", "enum", "items", "properties", "type"]


@pytest.mark.parametrize("part", range(4))
def test_they_are_schemas_that_can_be_followed(part: int) -> None:
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [4])
    for schema in SCHEMAS[part::4]:
        jsonschema_rs.Draft202012Validator(schema)
        matcher = vocabulary.matcher(grammar_text("json_schema", json.dumps(schema)))
        assert any(matcher.compute_bitmask())
