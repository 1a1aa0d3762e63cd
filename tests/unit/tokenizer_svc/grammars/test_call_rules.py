"""What a request asks of calls, together with what the model's formats are."""

import json
from dataclasses import replace
from typing import Any

import pytest

from proto.tokenizer_pb2 import CallShape, Conversation, Shape, TextRequest
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import Formats, ThoughtRules
from tokenizer_svc.grammars.call_rules import MOST_CHARACTERS, CallRules, Function, call_rules
from tokenizer_svc.model.tokenizer import TextModel

SCHEMA = {"type": "object", "properties": {"a": {}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "strict": True, "parameters": SCHEMA, "description": "F."},
    },
    {"type": "function", "function": {"name": "g", "strict": None, "parameters": {}}},
]
FUNCTIONS = [Function("f", SCHEMA, True), Function("g", None)]


def asking(tools: Any = TOOLS, **calls: Any) -> TextRequest:
    shape = Shape(calls=CallShape(**calls), param="tools")
    return TextRequest(shape=shape, chat=Conversation(tools=json.dumps(tools)))


@pytest.fixture
def formats(byte_level: TextModel) -> Formats:
    return Formats(replace(byte_level, template="<tool_call></think>"))


def test_the_functions_and_the_formats(formats: Formats, byte_level: TextModel) -> None:
    expected = CallRules(FUNCTIONS, "hermes", ThoughtRules("think", formats.marks), required=True)
    assert call_rules(asking(required=True), formats, [1]) == expected
    thinking = byte_level.encode("A<think>\n", special=False)
    assert call_rules(asking(single=True), formats, thinking) == replace(
        expected, required=False, single=True, before=ThoughtRules("think", formats.marks, True)
    )
    assert call_rules(asking(required=True, function="g"), formats, [1]) == replace(
        expected, functions=FUNCTIONS[1:]
    )


def test_a_model_without_a_format_of_calls(byte_level: TextModel) -> None:
    """What is only wished for is left out, and what is demanded is refused."""
    formats = Formats(replace(byte_level, template="</think>"), calls="none")
    assert call_rules(asking(), formats, [1]) is None
    with pytest.raises(InvalidRequestError, match="no format of calls") as refused:
        call_rules(asking(required=True), formats, [1])
    assert refused.value.param == "tool_choice"


def either(schema: str, lenient: bool = False) -> TextRequest:
    """A request for calls or for a text that has the shape."""
    request = asking()
    request.shape.CopyFrom(Shape(json_schema=schema, lenient=lenient, or_calls=CallShape()))
    return request


def test_the_shape_of_a_text_without_calls(formats: Formats) -> None:
    rules = call_rules(either("{}", lenient=True), formats, [1])
    assert rules is not None
    assert (rules.text_schema, rules.text_lenient) == ("{}", True)
    assert CallRules.read(rules.write()) == rules
    for function in rules.functions:
        alone = rules.alone(function)
        assert (alone.functions, alone.text_schema) == ([function], "")


def test_a_text_that_cannot_be_told_from_calls_has_its_shape_alone(byte_level: TextModel) -> None:
    anything, an_object = '{"type": ["object", "array"]}', '{"type": "object"}'
    for name, apart in (
        ("hermes", {anything, an_object}),
        ("json", {an_object}),
        ("pythonic", {an_object}),
        ("llama3_json", set()),
    ):
        formats = Formats(replace(byte_level, template="x"), calls=name)
        for schema in (anything, an_object):
            rules = call_rules(either(schema), formats, [1])
            assert (rules is not None) == (schema in apart), (name, schema)


def test_schemas_that_are_too_long_together(formats: Formats) -> None:
    long = {"type": "function", "function": {"name": "long", "parameters": {"enum": ["x" * MOST_CHARACTERS]}}}
    with pytest.raises(InvalidRequestError, match=f"{MOST_CHARACTERS} characters.* function 'long'"):
        call_rules(asking([*TOOLS, long]), formats, [1])
    assert call_rules(asking([*TOOLS, long], function="f"), formats, [1]) is not None
    with pytest.raises(InvalidRequestError, match="no function"):
        call_rules(asking([]), formats, [1])


def test_descriptions_are_no_part_of_the_rules(formats: Formats) -> None:
    about = {"description": "x" * MOST_CHARACTERS, "title": "A", "examples": ["a"], "default": "a"}
    named = {"description": {"type": "string", **about}, "default": {"$ref": "#/$defs/D"}}
    told = {"type": "object", **about, "properties": named, "$defs": {"D": {"enum": ["a"], **about}}}
    rules = call_rules(asking([{"function": {"name": "f", "parameters": told}}]), formats, [1])
    assert rules is not None
    (function,) = rules.functions
    assert function.parameters == {
        "type": "object",
        "properties": {"description": {"type": "string"}, "default": {"$ref": "#/$defs/D"}},
        "$defs": {"D": {"enum": ["a"]}},
    }


def test_a_schema_that_is_nested_deep_stays(formats: Formats) -> None:
    deep: Any = {}
    for _ in range(600):
        deep = {"items": deep}
    rules = call_rules(asking([{"function": {"name": "f", "parameters": deep}}]), formats, [1])
    assert rules is not None
    assert rules.functions == [Function("f", deep)]
