"""Calls whose arguments, members and items are all elements."""

import json

import pytest

from gateway.api.parsers.calls import functions_of
from tests.unit.gateway.api.parsers.test_splitter import NS, assert_any_cut_is_the_same, form_of, split

UNIT = {"type": "object", "properties": {"name": {"type": "string"}, "item": {"type": "integer"}}}
SCHEMA = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": ["integer", "null"]},
        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
        "units": {"type": "array", "items": {"$ref": "#/$defs/unit"}},
        "free": {},
        "some": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]},
        "parts": {"anyOf": [{"type": "array"}, UNIT]},
    },
    "$defs": {"unit": UNIT},
}


def written(*inner: str, name: str = "weather") -> str:
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{"".join(inner)}{NS}</invoke>\n{NS}</tool_call>'


def element(name: str, *inner: str) -> str:
    return f"{NS}<{name}>{''.join(inner)}{NS}</{name}>"


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        (element("city", " <b>A & B</city> \n"), {"city": " <b>A & B</city> \n"}),
        (element("city", "7") + "\n" + element("days", "7"), {"city": "7", "days": 7}),
        (element("days", "null"), {"days": None}),
        (element("tags", element("item", "7"), element("item", "")), {"tags": ["7", ""]}),
        (element("tags"), {"tags": []}),
        (element("tags", '["a", "b"]'), {"tags": ["a", "b"]}),
        (
            element("units", element("item", element("name", "x"), element("item", "5"))),
            {"units": [{"name": "x", "item": 5}]},
        ),
        (element("units", element("item")), {"units": [{}]}),
        (element("free", element("item", "1"), element("item", "x")), {"free": [1, "x"]}),
        (element("free", element("a", element("b", "true"))), {"free": {"a": {"b": True}}}),
        (element("some", element("item", "7")), {"some": ["7"]}),
        (element("some", element("item", "7"), element("a", "7")), {"some": {"item": 7, "a": 7}}),
        (element("parts", element("item", "7")), {"parts": {"item": 7}}),
        (element("two words", "x"), {"two words": "x"}),
        ("", {}),
    ],
)
def test_arguments(inner, arguments, monkeypatch):
    offered = functions_of([{"function": {"name": "weather", "parameters": SCHEMA}}])
    monkeypatch.setattr("tests.unit.gateway.api.parsers.test_splitter.FUNCTIONS", offered)
    (call,) = assert_any_cut_is_the_same(form_of("minimax_m3", "minimax_m3"), written(inner)).calls
    assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(
    "text",
    [
        written(element("city", "a", element("item", "b"))),
        written(element("at", "a", element("item", "b"))),
        written("a"),
        written(f"{NS}<city>a{NS}</days>"),
        written(f"{NS}<city>a"),
        written(f"{NS}city"),
        written().replace("invoke name", "call name"),
        f"{NS}<tool_call>{NS}</invoke>{NS}</tool_call>",
        f"{NS}<tool_call>weather{NS}</tool_call>",
        f"{NS}<tool_call>" + f"{NS}<at>" * 50_000 + f"{NS}</tool_call>",
        written(f"{NS}<at>" * 50_000 + f"{NS}</at>" * 50_000),
    ],
)
def test_what_is_no_call_is_text(text):
    found = split(form_of("minimax_m3"), text)
    assert (found.content, found.calls) == (text, ())
