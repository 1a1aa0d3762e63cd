"""Calls: those that clients demand, and those that the shipped model makes, with the openai client."""

import json
import re
from typing import Any

import jsonschema_rs
import openai
import pytest
from transformers import AutoTokenizer

from ops.tiny_model.training.corpus.calls import FUNCTIONS
from tests.support.deployment import SHIPPED_MODEL, Deployment

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
LETTER = 'start: "Begin" LF line{1,2} "\\"End\\""\nline: "+" /[a-z \\\\]{0,9}/ LF\n%import common.LF'
NOTE: Any = {
    "name": "note",
    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LETTER}},
}
ADD, GET_WEATHER = (
    next(each.offered() for each in FUNCTIONS if each.name == name) for name in ("add", "get_weather")
)
SHIPPED: Any = AutoTokenizer.from_pretrained(SHIPPED_MODEL)


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


def talk(client: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    """The likeliest message that follows."""
    answer = client.chat.completions.create(
        model="quire-tiny", messages=messages, temperature=0, max_tokens=300, **fields
    )
    return answer.choices[0].message


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
    """At temperature 1 of a model that knows none of these functions; its samples, and as a stream."""
    called = set()
    for choices in (ask(client, tool_choice=choice, n=8, seed=seed).choices for seed in range(2)):
        for each in choices:
            assert (each.finish_reason, each.message.content) == (reason, None)
            (call,) = each.message.tool_calls
            jsonschema_rs.validate(SCHEMAS[call.function.name], json.loads(call.function.arguments))
            called.add(call.function.name)
    assert called <= names
    whole = ask(client, tool_choice=choice, seed=7).choices[0].message.tool_calls[0]
    deltas = [chunk.choices[0] for chunk in ask(client, tool_choice=choice, seed=7, stream=True)]
    (streamed,) = [call for delta in deltas for call in delta.delta.tool_calls or ()]
    assert (streamed.function.name, streamed.function.arguments) == (
        whole.function.name,
        whole.function.arguments,
    )
    assert deltas[-1].finish_reason == reason


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_what_is_left_of_a_demanded_call_is_no_text(client, choice) -> None:
    for length in (1, 3, 6):
        (whole,) = ask(client, tool_choice=choice, max_tokens=length).choices
        assert (whole.finish_reason, whole.message.content, whole.message.tool_calls) == ("length", "", None)
        for chunk in ask(client, tool_choice=choice, max_tokens=length, stream=True):
            assert not chunk.choices[0].delta.content


def test_the_input_of_a_custom_tool_follows_its_grammar(client) -> None:
    """At temperature 1 of a model that has never seen such a tool; a grammar that is none is a 400."""
    tools = [*TOOLS, {"type": "custom", "custom": NOTE}]
    named = {"type": "custom", "custom": {"name": "note"}}
    for choice in ask(client, tools=tools, tool_choice=named, n=8, seed=5).choices:
        (call,) = choice.message.tool_calls
        assert call.type == "custom"
        assert re.fullmatch(r'Begin\n(\+[a-z \\]{0,9}\n){1,2}"End"', call.custom.input), call.custom.input
    flat = {"type": "custom", "name": "note", "format": {"type": "grammar", **NOTE["format"]["grammar"]}}
    asked: Any = {"model": "quire-tiny", "input": "A", "tools": [flat], "max_output_tokens": 150}
    response = client.responses.create(**asked, tool_choice={"type": "custom", "name": "note"})
    assert re.fullmatch(r'Begin\n(\+[a-z \\]{0,9}\n){1,2}"End"', response.output[0].input)
    flat["format"]["definition"] = "start: <|eos|>"
    with pytest.raises(openai.BadRequestError, match=r"function 'note': line 1: .* a special token"):
        client.responses.create(**asked)


def test_several_calls(client) -> None:
    """The model ends its calls after the first one, unless it would rather not."""
    endings = {str(token): -16 for text, token in SHIPPED.get_vocab().items() if "]" in text}
    fields = {"tool_choice": "required", "parallel_tool_calls": True, "logit_bias": endings}
    choices = ask(client, **fields, n=8, seed=3, max_tokens=300).choices
    complete = [choice.message.tool_calls for choice in choices if choice.finish_reason == "tool_calls"]
    assert max(map(len, complete)) > 1


def test_a_grammar_changes_nothing_of_a_text(client) -> None:
    """With strict functions an answer that is a text follows a grammar, too."""
    question = "Tell me a story about a fox."
    free: Any = [{**tool, "function": {**tool["function"], "strict": False}} for tool in (GET_WEATHER, ADD)]
    said = [
        talk(client, [{"role": "user", "content": question}], tools=tools, tool_choice="auto").content
        for tools in ([GET_WEATHER, ADD], free)
    ]
    assert said[0] == said[1]
    assert "fox" in said[0]


def test_functions_that_may_not_be_called_are_not_seen(client) -> None:
    told = ask(client, tool_choice="none", seed=3).choices[0].message
    unseen = ask(client, tools=openai.NOT_GIVEN, parallel_tool_calls=openai.NOT_GIVEN, seed=3).choices[0]
    assert told.tool_calls is None
    assert told.content == unseen.message.content


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("strict", [True, False])
def test_the_shipped_model_calls_a_function_and_tells_its_result(client, choice, strict) -> None:
    tools = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in (ADD, GET_WEATHER)]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    asked = talk(client, messages, tools=tools, tool_choice=choice)
    (call,) = asked.tool_calls
    assert (asked.content, call.function.name) == (None, "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [asked, {"role": "tool", "tool_call_id": call.id, "content": "snow"}]
    told = talk(client, messages, tools=tools)
    assert told.tool_calls is None
    assert "Oslo" in told.content
    assert "snow" in told.content


def test_a_call_of_a_function_that_is_not_offered_is_text(client) -> None:
    said = talk(client, [{"role": "user", "content": "How old is Mira?"}], tools=[ADD, GET_WEATHER])
    assert said.tool_calls is None
    assert json.loads(said.content) == [{"name": "get_age", "arguments": {"name": "Mira"}}]


def test_a_schema_that_cannot_be_followed_is_a_400_that_names_the_function(client) -> None:
    wrong = {"type": "function", "function": {"name": "rocket", "strict": True, "parameters": {"not": {}}}}
    for choice in ("auto", "required"):
        with pytest.raises(openai.BadRequestError, match=r"function 'rocket': .*not") as refused:
            ask(client, tools=[*TOOLS, wrong], tool_choice=choice)
        assert refused.value.param == "tools"
