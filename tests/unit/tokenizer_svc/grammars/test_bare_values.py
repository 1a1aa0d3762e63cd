"""Values as Gemma 4 writes them: what the grammar accepts is read as a value that its schema allows."""

import json
from typing import Any

import jsonschema_rs
import pytest

from tests.unit.tokenizer_svc.grammars.test_call_grammar import Model, model, split
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules, Function

__all__ = ["model"]

GEMMA = [
    # Values of an argument's schema as Gemma 4 writes them, and what it must not write.
    ({"type": "string"}, ['<|"|>a "b": {c},\n<|"|>', '<|"|><|"|>'], ['"a"', "a", '<|"|>a', "5"]),
    ({"type": "string", "pattern": "^a/.$"}, ['<|"|>a/b<|"|>'], ['<|"|>a/<|"|>', '<|"|>xa/b<|"|>']),
    ({"type": "string", "maxLength": 2}, ['<|"|>ab<|"|>'], ['<|"|>abc<|"|>']),
    ({"enum": ["x", None, [True, {"b": 1, "A": "y"}]]},
     ['<|"|>x<|"|>', "null", '[true,{A:<|"|>y<|"|>,b:1}]'], ['<|"|>y<|"|>', "None"]),
    ({"properties": {"b": {"type": "integer"}, "A": {"type": "string"}}},
     ["{}", '{A:<|"|>x<|"|>,b:5}', "{b:5,c:[null]}"], ['{b:5,A:<|"|>x<|"|>}', "{b:null}", "{c:1,b:null}"]),
    ({}, ['{a:[{b:<|"|>c<|"|>}],d:{}}', "-1.5", "[]"], ['{"a":1}', "{:1}", "{a}", "[1,]"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), GEMMA)
def test_values_as_gemma_4_writes_them(model: Model, schema: Any, good: list[str], bad: list[str]) -> None:
    function = Function("f", {"properties": {"a": schema}, "required": ["a"]}, strict=True)
    rules = CallRules([function], "gemma4", ThoughtRules("gemma4", model.special), required=True)
    for value in good:
        text = f"<|tool_call>call:f{{a:{value}}}<tool_call|>"
        assert model.takes(rules, f"<|channel>thought\nHm.\n<channel|>{text}{text}"), text
        (call,) = split(rules, text).calls
        assert jsonschema_rs.is_valid(function.parameters, json.loads(call.arguments)), text
    for value in bad:
        assert not model.takes(rules, f"<|tool_call>call:f{{a:{value}}}<tool_call|>"), value
