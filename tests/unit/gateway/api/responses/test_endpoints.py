"""POST /v1/responses: answers, streams and errors, as the openai client reads them."""

import json

import grpc
import openai
import pytest
from pydantic import BaseModel

from gateway.api.responses.answer_schema import RESPONSE_EVENTS, ResponseAnswer
from gateway.api.responses.schema import LOGPROBS, OPAQUE
from proto.sampling_pb2 import LENGTH
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.api.anthropic.test_messages import CALL, STORY, WHOLE, says

ASK = {"model": "m", "input": "A fox?"}
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
USAGE = {
    "input_tokens": 3,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


async def streamed(gateway, **fields):
    """The events of an answer, each of which is as documented."""
    answer = await gateway.http.post("/v1/responses", json=ASK | fields | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    found = []
    for number, event in enumerate(events):
        name, data = (line.partition(": ")[2] for line in event.split("\n"))
        value = RESPONSE_EVENTS[name].model_validate(json.loads(data), strict=True).model_dump()
        assert (value["type"], value["sequence_number"]) == (name, number)
        found.append(value)
    return found


def put_together(events):
    """The output as a client puts it together from what the events add."""
    output = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(output)
                assert event["item"]["status"] == "in_progress"
                output.append(event["item"])
            case "content_part.added":
                assert output[-1]["content"] == []
                output[-1]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                assert event["item_id"] == output[-1]["id"]
                part = output[-1]["content"][event["content_index"]]
                part["text"] += event["delta"]
                if "logprobs" in event:
                    part["logprobs"] += event["logprobs"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == output[-1]["content"][0]["text"]
            case "reasoning_summary_part.added":
                assert output[-1]["summary"] == []
                output[-1]["summary"].append(event["part"])
            case "reasoning_summary_text.delta":
                output[-1]["summary"][event["summary_index"]]["text"] += event["delta"]
            case "reasoning_summary_text.done":
                assert event["text"] == output[-1]["summary"][0]["text"]
            case "reasoning_summary_part.done":
                assert event["part"] == output[-1]["summary"][0]
            case "function_call_arguments.delta":
                output[-1]["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert event["arguments"] == output[-1]["arguments"]
            case "custom_tool_call_input.delta":
                output[-1]["input"] += event["delta"]
            case "custom_tool_call_input.done":
                assert event["input"] == output[-1]["input"]
            case "content_part.done":
                assert event["part"] == output[-1]["content"][0]
            case "output_item.done":
                for name in ("status", "encrypted_content"):  # known at the end
                    if name in event["item"]:
                        output[-1][name] = event["item"][name]
                assert event["item"] == output[-1]
    return output


def without_ids(response):
    changing = {"id", "created_at", "completed_at"}
    items = [{name: part for name, part in item.items() if name != "id"} for item in response["output"]]
    items = [item | ({"call_id": ""} if "call_id" in item else {}) for item in items]
    return {name: part for name, part in response.items() if name not in changing} | {"output": items}


async def both(gateway, **fields):
    """The collected answer, which the streamed one equals."""
    answer = await gateway.http.post("/v1/responses", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    whole = ResponseAnswer.model_validate(answer.json(), strict=True).model_dump()
    assert whole["id"] == "resp_" + answer.headers["x-request-id"]
    events = await streamed(gateway, **fields)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response." + whole["status"]
    last = events[-1]["response"]
    assert {event["response"]["id"] for event in (*events[:2], events[-1])} == {last["id"]}
    assert put_together(events) == last["output"]
    assert without_ids(last) == without_ids(whole)
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])
    return whole


async def test_a_text(gateway):
    fields = {"temperature": 0.5, "presence_penalty": 0.25}
    response = await both(gateway, metadata={"a": "b"}, instructions="Be brief.", **fields)
    (item,) = response["output"]
    assert item["content"] == [{"type": "output_text", "text": STORY, "annotations": [], "logprobs": []}]
    assert (item["role"], item["status"], response["status"]) == ("assistant", "completed", "completed")
    assert response["usage"] == USAGE | {"output_tokens": 12, "total_tokens": 15}
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be brief.")
    assert (response["temperature"], response["top_p"], response["store"]) == (0.5, 1, False)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.25, 0)
    assert response["incomplete_details"] is None


async def test_what_nobody_gives_is_the_models_own(gateway):
    response = await both(gateway)
    assert (response["temperature"], response["top_p"]) == (0.6, 1)


async def test_an_answer_that_is_cut(gateway):
    response = await both(gateway, max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][0]["status"] == "incomplete"
    assert gateway.tokenizer.requests[0].max_tokens == 2


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_thoughts_texts_and_calls_are_items(gateway, size):
    gateway.tokenizer.generate = says(WHOLE, size)
    response = await both(gateway, tools=TOOLS)
    thought, text, *calls = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Where?"}]
    assert text["content"][0]["text"] == "I look."
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("look", {"at": "owl"}),
        ("look", {"at": "fox"}),
    ]
    assert len({call["call_id"] for call in calls}) == 2
    assert [tool["name"] for tool in response["tools"]] == ["look"]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_thoughts_as_summaries(gateway, size):
    gateway.tokenizer.generate = says(WHOLE, size)
    response = await both(gateway, reasoning={"summary": "auto"})
    thought = response["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "Where?"}]
    assert thought["content"][0]["text"] == "Where?"
    assert response["reasoning"] == {"effort": None, "summary": "auto"}
    deltas = [
        event["delta"]
        for event in await streamed(gateway, reasoning={"summary": "auto"})
        if event["type"] == "response.reasoning_summary_text.delta"
    ]
    assert ("".join(deltas), len(deltas) > 1) == ("Where?", size == 1)


@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "none"}}])
async def test_who_does_not_ask_gets_neither_summaries_nor_opaque_thoughts(gateway, fields):
    gateway.tokenizer.generate = says(WHOLE)
    response = await both(gateway, **fields)
    assert (response["output"][0]["summary"], response["reasoning"]["summary"]) == ([], None)
    assert response["output"][0]["encrypted_content"] is None
    assert not [event for event in await streamed(gateway, **fields) if "summary" in event["type"]]


async def test_an_opaque_thought_comes_back(gateway):
    gateway.tokenizer.generate = says(WHOLE)
    client = gateway.openai()
    fields = {"reasoning": {"summary": "detailed"}, "include": [OPAQUE], "store": False}
    response = await both(gateway, **fields)
    async with client.responses.stream(**ASK, **fields) as stream:
        shown = [
            event.delta async for event in stream if event.type == "response.reasoning_summary_text.delta"
        ]
        final = await stream.get_final_response()
    assert "".join(shown) == final.output[0].summary[0].text == "Where?"
    assert final.output[0].encrypted_content == response["output"][0]["encrypted_content"]
    # As @ai-sdk/openai sends it back, or with content that is empty.
    thought = final.output[0].model_dump(include={"type", "summary", "encrypted_content"})
    for more in ({}, {"content": []}, {"content": None}):
        await client.responses.create(model="m", input=[thought | more, {"role": "user", "content": "And?"}])
        said = gateway.tokenizer.requests[-1].chat.messages[0]
        assert (said.role, said.reasoning) == ("assistant", "Where?")


async def test_a_call_of_a_custom_tool_is_a_text(gateway):
    said = json.dumps({"name": "patch", "arguments": {"input": "*** Begin\n❄"}})
    gateway.tokenizer.generate = says(f"<call>{said}</call>{CALL % 'owl'}")
    tool = {"type": "custom", "name": "patch", "description": "Patches."}
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    choice = {"type": "custom", "name": "patch"}
    response = await both(gateway, tools=[*TOOLS, tool | {"format": form}], tool_choice=choice)
    custom, _ = response["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", "*** Begin\n❄")
    assert response["tools"][1] == tool | {"format": form}
    request = gateway.tokenizer.requests[0]
    assert (request.shape.calls.required, request.shape.calls.function) == (True, "patch")
    assert request.shape.calls.inputs["patch"].definition == 'start: "a"'
    offered = json.loads(request.chat.tools)[1]["function"]
    assert offered["description"] == 'Patches.\n\n`input` follows this grammar (lark):\nstart: "a"'
    assert offered["parameters"]["required"] == ["input"]


async def test_one_call_at_most(gateway):
    gateway.tokenizer.generate = says(WHOLE, 1000)
    response = await both(gateway, tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call"]


async def test_a_call_that_is_cut_is_no_text(gateway):
    for text in ("", "I look."):
        gateway.tokenizer.generate = says(f"{text}<call>{{", reason=LENGTH)
        response = await both(gateway, tools=TOOLS)
        assert [item["content"][0]["text"] for item in response["output"]] == [text] * bool(text)
        assert response["status"] == "incomplete"


async def test_an_empty_answer_has_no_items(gateway):
    gateway.tokenizer.generate = says("")
    assert (await both(gateway))["output"] == []


async def test_log_probabilities(gateway):
    response = await both(gateway, include=[LOGPROBS], top_logprobs=2, max_output_tokens=3)
    entries = response["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["Once", " upon", " a"]
    assert [(top["token"], top["logprob"]) for top in entries[0]["top_logprobs"]] == [
        ("Once", -0.5),
        ("Once~1", -1.5),
    ]


async def test_an_error_in_a_stream_ends_the_response(gateway):
    async def fail(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=1), deltas=[TextDelta(text="A", token_ids=[1])])
        await context.abort(grpc.StatusCode.ABORTED, "enough")

    gateway.tokenizer.generate = fail
    last = (await streamed(gateway))[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "enough"}
    assert last["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_a_stream_names_the_fields_of_this_api(gateway, stream):
    gateway.tokenizer.generate = refusing(grpc.StatusCode.INVALID_ARGUMENT)
    with pytest.raises(openai.BadRequestError, match="'max_output_tokens'") as refused:
        await gateway.openai().responses.create(**ASK, stream=stream)
    assert (refused.value.param, refused.value.code) == ("input", "invalid_value")


def refusing(code):
    async def refuse(request, context):
        await context.abort(code, "too long with 'max_tokens'", (("quire-param", "prompt"),))
        yield

    return refuse


async def test_a_conversation_that_is_too_long(gateway):
    gateway.tokenizer.generate = refusing(grpc.StatusCode.OUT_OF_RANGE)
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.openai().responses.create(**ASK)
    assert (refused.value.param, refused.value.code) == ("input", "context_length_exceeded")


async def test_a_stream_tells_within_it_that_the_conversation_is_too_long(gateway):
    gateway.tokenizer.generate = refusing(grpc.StatusCode.OUT_OF_RANGE)
    *started, error, failed = await streamed(gateway)
    assert [event["type"] for event in started] == ["response.created", "response.in_progress"]
    assert (error["error"]["code"], error["error"]["param"]) == ("context_length_exceeded", "input")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    message = "too long with 'max_output_tokens'"
    assert failed["response"]["error"] == {"code": "context_length_exceeded", "message": message}
    with pytest.raises(openai.APIError, match="too long"):
        async for _ in await gateway.openai().responses.create(**ASK, stream=True):
            pass


NOTES = {
    "type": "namespace",
    "name": "mcp__notes__",
    "description": "Notes.",
    "tools": [TOOLS[0], {"type": "custom", "name": "patch"}],
}


async def test_a_call_of_a_tool_in_a_namespace(gateway):
    look = '<call>{"name": "mcp__notes__look", "arguments": {"at": "owl"}}</call>'
    patch = '<call>{"name": "mcp__notes__patch", "arguments": {"input": "a"}}</call>'
    gateway.tokenizer.generate = says(look + patch + CALL % "fox")
    response = await both(gateway, tools=[NOTES, *TOOLS])
    places = [(call["type"], call["namespace"], call["name"]) for call in response["output"]]
    assert places == [
        ("function_call", "mcp__notes__", "look"),
        ("custom_tool_call", "mcp__notes__", "patch"),
        ("function_call", None, "look"),
    ]
    offered = json.loads(gateway.tokenizer.requests[0].chat.tools)
    assert [tool["function"]["name"] for tool in offered] == ["mcp__notes__look", "mcp__notes__patch", "look"]
    client = gateway.openai()
    answer = await client.responses.create(**ASK, tools=[NOTES, *TOOLS])
    first, _, last = answer.output
    assert (first.namespace, first.name, last.name) == ("mcp__notes__", "look", "look")
    assert "namespace" not in last.model_fields_set
    # The model sees in the history what it has said.
    await client.responses.create(model="m", input=[{"role": "user", "content": "A"}, *answer.output])
    said = gateway.tokenizer.requests[-1].chat.messages[-1].tool_calls
    assert [call.name for call in said] == ["mcp__notes__look", "mcp__notes__patch", "look"]


class Look(BaseModel):
    at: str


async def test_the_openai_client_reads_answers_and_streams(gateway):
    client = gateway.openai()
    answer = await client.responses.create(**ASK)
    assert (answer.output_text, answer.status, answer.usage.total_tokens) == (STORY, "completed", 15)
    gateway.tokenizer.generate = says(WHOLE)
    async with client.responses.stream(**ASK, tools=TOOLS) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == "I look."
    assert [item.type for item in final.output] == ["reasoning", "message", *["function_call"] * 2]
    gateway.tokenizer.generate = says('{"at": "owl"}')
    parsed = await client.responses.parse(**ASK, text_format=Look)
    assert parsed.output_parsed == Look(at="owl")
    assert json.loads(gateway.tokenizer.requests[-1].shape.json_schema)["required"] == ["at"]
    # What came back is what a client sends again.
    again = [{"role": "user", "content": "A fox?"}, *final.output, {"role": "user", "content": "And?"}]
    await client.responses.create(model="m", input=again)
    messages = gateway.tokenizer.requests[-1].chat.messages
    assert [(one.role, one.content, one.reasoning, len(one.tool_calls)) for one in messages] == [
        ("user", "A fox?", "", 0),
        ("assistant", "I look.", "Where?", 2),
        ("user", "And?", "", 0),
    ]
