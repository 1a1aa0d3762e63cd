"""The ways in which clients say what an answer's text must look like: all become one message."""

import json
from typing import Any

import pytest

from gateway.api.common.body import parse
from gateway.api.generation.shape import MAX_CHARACTERS, MAX_DEPTH
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import Shape

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
TAG_TEXT = json.dumps(TAG, separators=(",", ":"))
FORMAT = {"format": {"type": "tag", "begin": "<é>", "content": {"type": "any_text"}, "end": "</é>"}}
FORMAT_TEXT = json.dumps(FORMAT, separators=(",", ":"), ensure_ascii=False)
NEWER = {"type": "structural_tag", **FORMAT}
"""As vLLM and SGLang take it today."""


def shape_of(kind: type[ChatBody] | type[CompletionBody] = ChatBody, **fields: Any) -> Shape | None:
    begin = {"messages": [{"role": "user", "content": "x"}]} if kind is ChatBody else {"prompt": "x"}
    return parse(json.dumps({"model": "m", **begin, **fields}).encode(), kind).shape


ASKED: list[tuple[dict[str, Any], Shape | None]] = [
    ({}, None),
    ({"response_format": None, "guided_json": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {}}, None),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"response_format": {"type": "json_object"}}, Shape(json_schema='{"type":"object"}')),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        Shape(json_schema=TEXT, lenient=True),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True, "description": None},
            }
        },
        Shape(json_schema=TEXT),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, Shape(json_schema=TEXT)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, Shape(json_schema=TEXT)),
    ({"structured_outputs": {"json_object": True}}, Shape(json_schema='{"type":"object"}')),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        Shape(json_schema=TEXT, compact=True),
    ),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        Shape(json_schema='{"type":"object"}', compact=True),
    ),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, Shape(json_schema=TEXT)),
    ({"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}}, Shape(regex="a+")),
    ({"structured_outputs": {"disable_any_whitespace": True}}, None),
    ({"structured_outputs": {"regex": "a+"}}, Shape(regex="a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Shape(choice='["a", "b"]')),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, Shape(grammar='root ::= "a"')),
    ({"structured_outputs": {"structural_tag": TAG}}, Shape(structural_tag=TAG_TEXT)),
    ({"structured_outputs": {"structural_tag": TAG_TEXT}}, Shape(structural_tag=TAG_TEXT)),
    ({"response_format": {"type": "structural_tag", **TAG}}, Shape(structural_tag=TAG_TEXT)),
    ({"structured_outputs": {"structural_tag": json.dumps(NEWER)}}, Shape(structural_tag=FORMAT_TEXT)),
    ({"structured_outputs": {"structural_tag": FORMAT}}, Shape(structural_tag=FORMAT_TEXT)),
    ({"response_format": NEWER}, Shape(structural_tag=FORMAT_TEXT)),
    ({"response_format": NEWER | {"json_schema": None}}, Shape(structural_tag=FORMAT_TEXT)),
    ({"response_format": NEWER | {"structures": [], "triggers": None}}, Shape(structural_tag=FORMAT_TEXT)),
    ({"response_format": {"type": "structural_tag", **TAG, "format": None}}, Shape(structural_tag=TAG_TEXT)),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        Shape(json_schema=TEXT, lenient=True),
    ),
    (
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        Shape(json_schema=TEXT, lenient=True),
    ),
    ({"guided_json": SCHEMA}, Shape(json_schema=TEXT)),
    ({"guided_regex": "a"}, Shape(regex="a")),
    ({"guided_choice": ["a"]}, Shape(choice='["a"]')),
    ({"guided_grammar": "start: A"}, Shape(grammar="start: A")),
    ({"json_schema": SCHEMA}, Shape(json_schema=TEXT)),
    ({"json_schema": json.dumps(SCHEMA)}, Shape(json_schema=TEXT)),
    ({"regex": "a"}, Shape(regex="a")),
    ({"grammar": 'root ::= "a"'}, Shape(grammar='root ::= "a"')),
    ({"ebnf": 'root ::= "a"'}, Shape(grammar='root ::= "a"')),
    ({"regex": "", "ebnf": "", "grammar": ""}, None),
    (
        {"guided_grammar": "start: A", "structured_outputs": {"grammar": "start: A"}},
        Shape(grammar="start: A"),
    ),
    ({"guided_json": SCHEMA, "json_schema": json.dumps(SCHEMA)}, Shape(json_schema=TEXT)),
]


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
@pytest.mark.parametrize(("fields", "expected"), ASKED)
def test_each_way_becomes_one_shape(kind, fields, expected) -> None:
    found = shape_of(kind, **fields)
    if found is not None:
        assert found.param in fields
        found.ClearField("param")
    assert found == expected


def nested(depth: int) -> dict[str, Any]:
    return {} if depth == 1 else {"items": nested(depth - 1)}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
        "response_format",
    ),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}},
        "response_format",
    ),
    ({"response_format": {"type": "structural_tag"}}, "response_format.structural_tag"),
    ({"response_format": NEWER | {"strict": True}}, "response_format.structural_tag"),
    ({"response_format": NEWER | TAG}, "response_format.structural_tag"),
    (
        {"structured_outputs": {"structural_tag": FORMAT | {"type": "tag"}}},
        "structured_outputs.structural_tag",
    ),
    (
        {"structured_outputs": {"structural_tag": {"format": {"type": "x", **nested(MAX_DEPTH)}}}},
        "structured_outputs.structural_tag",
    ),
    ({"structured_outputs": {"structural_tag": {"format": {}}}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"structural_tag": TAG | {"triggers": []}}}, "structured_outputs.structural_tag"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "regex"),
    ({"regex": "a", "guided_regex": "b"}, "guided_regex"),
    ({"regex": "a", "guided_regex": "a", "ebnf": 'root ::= "a"'}, "guided_regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
    ({"guided_json": [SCHEMA]}, "guided_json"),
    ({"guided_json": nested(MAX_DEPTH + 1)}, "guided_json"),
    ({"guided_regex": "a" * (MAX_CHARACTERS + 1)}, "guided_regex"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_what_is_wrong_is_named(fields, param) -> None:
    with pytest.raises(BadRequest) as refused:
        shape_of(**fields)
    assert refused.value.param == param


def test_fields_of_others_that_ask_for_nothing() -> None:
    """As of a client that writes out all fields of vLLM's class."""
    whole = {
        "regex": "ab",
        "json": None,
        "json_object": None,
        "disable_fallback": False,
        "whitespace_pattern": None,
    }
    assert shape_of(structured_outputs=whole) == Shape(regex="ab", param="structured_outputs")
    assert shape_of(response_format={"type": "json_object", "schema": None}) is not None
    for more in ({"whitespace_pattern": " "}, {"retries": 0}):
        with pytest.raises(BadRequest) as refused:
            shape_of(structured_outputs={"regex": "ab", **more})
        assert refused.value.param == f"structured_outputs.{next(iter(more))}"


def test_the_deepest_schema_that_is_taken() -> None:
    assert shape_of(guided_json=nested(MAX_DEPTH)) is not None


@pytest.mark.parametrize("text", ["[" * (MAX_CHARACTERS + 1), json.dumps({"type": "x" * MAX_CHARACTERS})])
def test_a_text_is_measured_before_objects_are_made_of_it(text) -> None:
    """What is within a string of a body is not counted: six million characters spell two million lists."""
    for fields in (
        {"guided_json": text},
        {"structured_outputs": {"json": text}},
        {"structured_outputs": {"structural_tag": text}},
        {"response_format": {"type": "structural_tag", "structural_tag": text}},
    ):
        with pytest.raises(BadRequest, match=f"at most {MAX_CHARACTERS} characters"):
            shape_of(**fields)
