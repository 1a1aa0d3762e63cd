"""Calls that clients demand, through all four processes with the openai client."""

import json
from typing import Any

import jsonschema_rs
import openai
import pytest

from tests.support.deployment import Deployment

CITY = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "clock": {
        "type": "object",
        "properties": {"zone": {"enum": ["UTC", "CET"]}},
        "required": ["zone"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "clock"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
}


@pytest.fixture
def client(deployment: Deployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=60)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    body: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 150, **fields}
    return client.chat.completions.create(
        model="quire-tiny",
        messages=[{"role": "user", "content": "What is the weather in Bergen?"}],
        temperature=1,
        top_p=1,
        **body,
    )


@pytest.mark.parametrize(
    ("choice", "names", "reason"),
    [
        ("required", {"weather", "clock"}, "tool_calls"),
        (NAMED, {"clock"}, "stop"),
        (ALLOWED, {"weather"}, "tool_calls"),
    ],
    ids=["required", "named", "allowed"],
)
def test_a_call_that_is_demanded_comes_and_is_valid(client, choice, names, reason) -> None:
    """At temperature 1 of a model that knows nothing of calls; its samples, and as a stream."""
    called = set()
    for choices in (ask(client, tool_choice=choice, n=8, seed=seed).choices for seed in range(2)):
        for each in choices:
            assert (each.finish_reason, each.message.content) == (reason, None)
            (call,) = each.message.tool_calls
            jsonschema_rs.validate(SCHEMAS[call.function.name], json.loads(call.function.arguments))
            called.add(call.function.name)
    assert called == names
    whole = ask(client, tool_choice=choice, seed=7).choices[0].message.tool_calls[0]
    deltas = [chunk.choices[0] for chunk in ask(client, tool_choice=choice, seed=7, stream=True)]
    (streamed,) = [call for delta in deltas for call in delta.delta.tool_calls or ()]
    assert (streamed.function.name, streamed.function.arguments) == (
        whole.function.name,
        whole.function.arguments,
    )
    assert deltas[-1].finish_reason == reason


def test_several_calls(client) -> None:
    found = [
        ask(client, tool_choice="required", parallel_tool_calls=True, seed=seed, max_tokens=400)
        for seed in range(6)
    ]
    assert {choice.finish_reason for answer in found for choice in answer.choices} <= {"tool_calls", "length"}
    assert max(len(answer.choices[0].message.tool_calls) for answer in found) > 1


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_free_text_stays_free(client, choice) -> None:
    """With strict functions a text follows a grammar, which changes nothing of it."""
    said = ask(client, tool_choice=choice, seed=3).choices[0].message
    assert said.tool_calls is None
    assert (
        said.content
        == ask(client, tools=openai.NOT_GIVEN, parallel_tool_calls=openai.NOT_GIVEN, seed=3)
        .choices[0]
        .message.content
    )


def test_a_schema_that_cannot_be_followed_is_a_400_that_names_the_function(client) -> None:
    wrong = {"type": "function", "function": {"name": "rocket", "strict": True, "parameters": {"not": {}}}}
    for choice in ("auto", "required"):
        with pytest.raises(openai.BadRequestError, match=r"function 'rocket': .*not") as refused:
            ask(client, tools=[*TOOLS, wrong], tool_choice=choice)
        assert refused.value.param == "tools"
