"""Which parts of a JSON Schema are schemas."""

from typing import Any

from tokenizer_svc.grammars.schema_walk import mapped


def marked(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "seen": True}


def test_schemas_within_are_changed_and_values_are_not() -> None:
    schema = {
        "const": {"a": {}},
        "enum": [{}],
        "anyOf": [{}, True],
        "items": {"not": {}},
        "properties": {"enum": {"type": "null"}, "const": False},
    }
    assert mapped(schema, marked) == {
        "const": {"a": {}},
        "enum": [{}],
        "anyOf": [{"seen": True}, True],
        "items": {"not": {"seen": True}, "seen": True},
        "properties": {"enum": {"type": "null", "seen": True}, "const": False},
        "seen": True,
    }
    assert schema["anyOf"] == [{}, True]
    assert mapped(True, marked) is True


def test_those_with_an_id_may_be_left() -> None:
    schema = {"$id": "https://example.org/", "items": {"$id": "https://example.org/own", "items": {}}}
    assert mapped(schema, marked, own_ids=False) == {**schema, "seen": True}
    assert mapped(schema, marked)["items"]["items"] == {"seen": True}
