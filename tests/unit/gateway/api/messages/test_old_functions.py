"""`functions` and `function_call` of chat completions."""

import json

import pytest

from gateway.api.openai.answer_schema import ChatCompletion, ChatCompletionChunk
from tests.unit.gateway.api.anthropic.test_messages import CALL, WHOLE, says

LOOK = {"name": "look", "parameters": {"type": "object"}}
MESSAGES = [{"role": "user", "content": "A fox?"}]
ASK = {"model": "m", "messages": MESSAGES, "functions": [LOOK]}


async def choice_of(gateway, **fields):
    answer = await gateway.http.post("/v1/chat/completions", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    assert "x-quire-ignored" not in answer.headers
    ChatCompletion.model_validate(answer.json(), strict=True)
    return answer.json()["choices"][0]


async def test_a_call(gateway):
    gateway.tokenizer.generate = says(WHOLE)
    choice = await choice_of(gateway)
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == ("I look.", "function_call")
    call = message["function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"at": "owl"})
    assert "tool_calls" not in message
    (request,) = gateway.tokenizer.requests
    assert json.loads(request.chat.tools) == [{"type": "function", "function": LOOK}]


async def test_a_streamed_call(gateway):
    gateway.tokenizer.generate = says(WHOLE)
    answer = await gateway.http.post("/v1/chat/completions", json=ASK | {"stream": True})
    data = [part.removeprefix("data: ") for part in answer.text.strip().split("\n\n")]
    chunks = [ChatCompletionChunk.model_validate_json(part, strict=True) for part in data[:-1]]
    calls = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices[0].delta.function_call]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("look", {"at": "owl"})]
    assert chunks[-1].choices[0].finish_reason == "function_call"


@pytest.mark.parametrize(("choice", "demanded"), [("auto", ""), ({"name": "look"}, "look")])
async def test_which_call(gateway, choice, demanded):
    gateway.tokenizer.generate = says(CALL % "owl")
    found = await choice_of(gateway, function_call=choice)
    (request,) = gateway.tokenizer.requests
    assert (request.shape.calls.function, request.shape.calls.required) == (demanded, bool(demanded))
    assert found["message"]["function_call"]["name"] == "look"
    assert found["finish_reason"] == ("stop" if demanded else "function_call")


async def test_no_call(gateway):
    await choice_of(gateway, function_call="none")
    await choice_of(gateway, functions=[], function_call="auto")
    assert {request.chat.tools for request in gateway.tokenizer.requests} == {""}


async def test_calls_and_results_come_back(gateway):
    call = {"name": "look", "arguments": "{}"}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "look", "content": "snow"},
    ]
    await choice_of(gateway, messages=messages)
    _, asked, result = gateway.tokenizer.requests[0].chat.messages
    (made,) = asked.tool_calls
    assert (made.name, made.arguments, asked.no_content) == ("look", "{}", True)
    assert (result.role, result.content, result.name) == ("tool", "snow", "look")
    assert result.tool_call_id == made.id
    assert len(made.id) == 9


async def test_tools_go_before_functions(gateway):
    """Some clients send both."""
    gateway.tokenizer.generate = says(WHOLE)
    tools = [{"type": "function", "function": LOOK | {"description": "Looks."}}]
    choice = await choice_of(gateway, tools=tools, function_call={"name": "hear"})
    assert json.loads(gateway.tokenizer.requests[0].chat.tools) == tools
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["look", "look"]
    assert choice["finish_reason"] == "tool_calls"
