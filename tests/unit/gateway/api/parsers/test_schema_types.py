"""Which types a schema allows tells whether a model's text for an argument is JSON."""

import json

import pytest

from gateway.api.parsers.calls import functions_of
from gateway.api.parsers.schema_types import types_of
from gateway.api.parsers.splitter import Splitter
from tests.unit.gateway.api.parsers.test_splitter import form_of

UNIT = {
    "Unit": {"enum": ["1", "2"]},
    "Loop": {"$ref": "#/$defs/Loop"},
    "Deep": {"anyOf": [{"$ref": "#/$defs/Deep"}]},
}
CASES = [
    ({"type": "string"}, {"string"}),
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    ({"oneOf": [{"type": "integer"}, {"const": "auto"}]}, {"integer", "string"}),
    ({"enum": ["1", 2, None]}, {"string", "integer", "number", "null"}),
    ({"$ref": "#/$defs/Unit"}, {"string"}),
    ({"allOf": [{"description": "of any type"}, {"$ref": "#/$defs/Unit"}]}, {"string"}),
    ({"anyOf": [{"type": "string"}, {}]}, set()),
    ({"$ref": "#"}, {"object"}),
    ({"$ref": "#/$defs/Loop"}, set()),
    ({"$ref": "#/$defs/Deep"}, set()),
    ({"$ref": "#/nowhere/at/all"}, set()),
    ({"type": 7}, set()),
    ({}, set()),
    (True, set()),
    (None, set()),
]


@pytest.mark.parametrize(("schema", "types"), CASES)
def test_types(schema, types):
    assert types_of("a", {"type": "object", "properties": {"a": schema}, "$defs": UNIT}) == types


@pytest.mark.parametrize("schema", [{}, {"properties": []}, {"properties": {"b": {"type": "string"}}}])
def test_what_tells_nothing_allows_anything(schema):
    assert types_of("a", schema) == frozenset()


OWN = {"properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/definitions/Own", "definitions": {"Own": OWN}},
        {"allOf": [{"properties": {"b": {}}}, {"$ref": "#/$defs/Own"}], "$defs": {"Own": OWN}},
        {"additionalProperties": {"type": "string"}},
    ],
)
def test_arguments_may_be_listed_elsewhere(schema):
    assert types_of("a", schema) == {"string"}


def test_a_schema_that_branches_without_end_is_soon_read():
    wide = {"anyOf": [{"$ref": "#/$defs/Wide"}] * 50}
    assert types_of("a", {"properties": {"a": wide}, "$defs": {"Wide": wide}}) == frozenset()


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "1.10", "1.10"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"1.10"', "1.10"),
        ({"type": ["string", "null"]}, "12e5", "12e5"),
        ({"enum": ["90210", "0"]}, "90210", "90210"),
        ({"type": ["string", "integer"]}, "3", 3),
        ({"type": ["string", "number"]}, "3", 3),
        ({"type": ["string", "integer"]}, "3.5", "3.5"),
        ({"type": ["string", "boolean"]}, "True", True),
        ({"type": ["string", "null"]}, "[1]", "[1]"),
        ({"type": "integer"}, "3", 3),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({}, "1.10", 1.1),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder", "glm", "minimax_m2", "seed_oss"])
def test_a_text_stays_one_where_the_schema_wants_it(name, schema, text, value):
    texts = {
        "qwen3_coder": "<tool_call><function=f><parameter=a>\n{}\n</parameter></function></tool_call>",
        "glm": "<tool_call>f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>",
        "minimax_m2": '<minimax:tool_call><invoke name="f"><parameter name="a">{}</parameter></invoke>'
        "</minimax:tool_call>",
        "seed_oss": "<seed:tool_call><function=f><parameter=a>{}</parameter></function></seed:tool_call>",
    }
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    splitter = Splitter(form_of(name), functions_of([{"type": "function", "function": function}]))
    (call,) = splitter.add(texts[name].format(text)).calls
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize(("told", "value"), [("true", "3"), ("false", 3)])
def test_deepseek_says_itself_what_is_a_text(told, value):
    text = (
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">'
        f'<｜DSML｜parameter name="a" string="{told}">3</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜function_calls>"
    )
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "boolean"}}}}
    (call,) = Splitter(form_of("deepseek_v32"), functions_of([{"function": function}])).add(text).calls
    assert json.loads(call.arguments) == {"a": value}
