"""POST /v1/messages: answers, streams and errors in Anthropic's shape."""

import json

import grpc
import httpx
import pytest

from gateway.api.anthropic.answer_schema import EVENTS, AnthropicError, MessageAnswer
from gateway.app import Options
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP
from proto.tokenizer_pb2 import JSON_CALLS, AnswerFormat, PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.conftest import app_of

STORY = "Once upon a time, a fox saw snow ❄."
ASK = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "A fox?"}]}
TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
FORM = AnswerFormat(
    thought_begin="<think>",
    thought_end="</think>",
    call_begin=["<call>"],
    call_end="</call>",
    call_syntax=JSON_CALLS,
)
CALL = '<call>{"name": "look", "arguments": {"at": "%s"}}</call>'
WHOLE = f"<think>Where?</think>I look.{CALL % 'owl'}{CALL % 'fox'}"
USAGE = {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2}


def says(text, size=3, reason=STOP, stop_string=""):
    """A tokenizer that says `text` in pieces of `size` characters."""

    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=3, cached_tokens=2, format=FORM))
        pieces = [text[place : place + size] for place in range(0, len(text), size)] or [""]
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            delta = TextDelta(text=piece, token_ids=[number], finish_reason=reason if last else NOT_FINISHED)
            delta.stop_string = stop_string if last else ""
            yield TextChunk(deltas=[delta])

    return generate


async def collected(gateway, **fields):
    answer = await gateway.http.post("/v1/messages", json=ASK | fields)
    assert answer.status_code == 200, answer.text
    return MessageAnswer.model_validate(answer.json(), strict=True).model_dump()


async def streamed(gateway, **fields):
    """The message that a client puts together from the events, each of which is as documented."""
    answer = await gateway.http.post("/v1/messages", json=ASK | fields | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    message, blocks, open_block = {}, [], None
    for number, event in enumerate(events):
        name, data = (line.partition(": ")[2] for line in event.split("\n"))
        value = EVENTS[name].model_validate(json.loads(data), strict=True).model_dump()
        assert value["type"] == name
        match name:
            case "message_start":
                assert number == 0
                message = value["message"]
            case "content_block_start":
                assert open_block is None
                assert value["index"] == len(blocks)
                open_block = value["index"]
                blocks.append(value["content_block"] | {"json": ""})
            case "content_block_delta":
                assert value["index"] == open_block
                delta, block = value["delta"], blocks[-1]
                kind = delta.pop("type")
                (field,) = delta
                assert block["type"] == {
                    "text_delta": "text",
                    "thinking_delta": "thinking",
                    "signature_delta": "thinking",
                    "input_json_delta": "tool_use",
                }.get(kind)
                into = "json" if field == "partial_json" else field
                block[into] += delta[field]
            case "content_block_stop":
                assert value["index"] == open_block
                open_block = None
            case "message_delta":
                assert open_block is None
                message |= value["delta"] | {"usage": value["usage"]}
    assert events[-1].startswith("event: message_stop")
    for block in blocks:
        if arguments := block.pop("json"):
            block["input"] = json.loads(arguments)
    return message | {"content": blocks}


async def both(gateway, **fields):
    """The collected answer, which the streamed one equals."""
    whole, pieces = await collected(gateway, **fields), await streamed(gateway, **fields)
    assert whole.pop("id").startswith("msg_")
    assert pieces.pop("id").startswith("msg_")
    for message in (whole, pieces):
        for block in message["content"]:
            assert block.pop("id", "x")
    assert whole == pieces
    return whole


async def test_a_text(gateway):
    message = await both(gateway)
    assert message["content"] == [{"type": "text", "text": STORY}]
    assert (message["role"], message["model"], message["type"]) == ("assistant", "m", "message")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"] == USAGE | {"output_tokens": 12}


async def test_an_answer_that_is_cut(gateway):
    message = await both(gateway, max_tokens=2)
    assert message["stop_reason"] == "max_tokens"


async def test_more_tokens_than_the_context_has_room_for_may_be_asked_for(gateway):
    gateway.tokenizer.generate = says("A fox", reason=LENGTH)
    message = await both(gateway, max_tokens=32_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    for request in gateway.tokenizer.requests:
        assert request.max_tokens == 32_000
        assert "max_tokens" not in request.left_out, "a default of the model's would replace it"


async def test_a_budget_of_the_thought_is_a_wish(gateway):
    await both(gateway, thinking={"type": "enabled", "budget_tokens": 1024})
    for request in gateway.tokenizer.requests:
        assert (request.thinking_budget, request.lenient_budget) == (1024, True)


async def test_a_prompt_may_be_cached_and_not_answered(gateway):
    message = await both(gateway, max_tokens=0)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert message["usage"] == USAGE | {"output_tokens": 0}
    assert gateway.tokenizer.requests[0].max_tokens == 1


async def test_a_stop_sequence_is_named(gateway):
    gateway.tokenizer.generate = says("A fox", stop_string="END")
    message = await both(gateway, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert list(gateway.tokenizer.requests[0].stop) == ["END"]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_thoughts_text_and_calls_are_blocks(gateway, size):
    gateway.tokenizer.generate = says(WHOLE, size)
    message = await both(gateway, tools=TOOLS)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Where?", "signature": "quire"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "look", "input": {"at": "owl"}},
        {"type": "tool_use", "name": "look", "input": {"at": "fox"}},
    ]
    assert message["stop_reason"] == "tool_use"


async def test_one_call_at_most(gateway):
    gateway.tokenizer.generate = says(WHOLE, 1000)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = await both(gateway, tools=TOOLS, tool_choice=choice)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]


async def test_a_call_that_is_cut_is_no_text(gateway):
    for text in ("", "I look."):
        gateway.tokenizer.generate = says(f"{text}<call>{{", reason=LENGTH)
        message = await both(gateway, tools=TOOLS, max_tokens=3)
        assert message["content"] == [{"type": "text", "text": text}] * bool(text)
        assert message["stop_reason"] == "max_tokens"


async def test_an_empty_answer_has_no_blocks(gateway):
    gateway.tokenizer.generate = says("")
    assert (await both(gateway))["content"] == []


async def test_counting(gateway):
    ask = {"model": "m", "messages": ASK["messages"], "system": "Be brief."}
    answer = await gateway.http.post("/v1/messages/count_tokens", json=ask)
    assert answer.json() == {"input_tokens": len("Be brief.A fox?")}


@pytest.mark.parametrize(
    ("volatile", "end"), [("omit", ""), ("last", "\nx-anthropic-billing-header: cch=eb6c6;")]
)
async def test_a_volatile_header_is_left_out_or_comes_last(backend, tokenizer, volatile, end):
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=eb6c6;"},
        {"type": "text", "text": "Be brief."},
    ]
    transport = httpx.ASGITransport(app_of(backend, options=Options(volatile_header=volatile)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            answer = await http.post(path, json=ASK | {"system": system})
            assert answer.status_code == 200, answer.text
    for request in tokenizer.requests:
        assert [one.content for one in request.chat.messages] == ["Be brief.", "A fox?" + end]


def error_of(answer):
    error = AnthropicError.model_validate(answer.json(), strict=True)
    assert error.request_id == answer.headers["x-request-id"] == answer.headers["request-id"]
    assert error.error.message
    return answer.status_code, error.error.type


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("ask", "found"),
    [
        ({"content": b"{"}, (400, "invalid_request_error")),
        ({"json": ASK | {"messages": 3}}, (400, "invalid_request_error")),
        ({"json": ASK | {"model": "n"}}, (404, "not_found_error")),
        ({"content": b" " * 30_000_000}, (413, "request_too_large")),
        ({"content": b"{}", "headers": {"Content-Type": "text/plain"}}, (415, "invalid_request_error")),
        ({"json": ASK, "headers": {"Host": "evil.example"}}, (403, "permission_error")),
    ],
)
async def test_errors_have_anthropics_shape(refusing, path, ask, found):
    assert error_of(await refusing.post(path, **ask)) == found


async def test_a_wrong_method_has_it_too(refusing):
    assert error_of(await refusing.get("/v1/messages")) == (405, "invalid_request_error")


async def test_a_key_may_be_in_anthropics_header(gateway, keys_of):
    transport = httpx.ASGITransport(app_of(gateway.backend, keys_of({"sk-a": "a"})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        refused = await http.post("/v1/messages", json=ASK, headers={"X-Api-Key": "sk-b"})
        assert error_of(refused) == (401, "authentication_error")
        for headers in ({"X-Api-Key": "sk-a"}, {"Authorization": "Bearer sk-a"}):
            assert (await http.post("/v1/messages", json=ASK, headers=headers)).status_code == 200
    assert [request.tenant for request in gateway.tokenizer.requests] == ["a", "a"]


async def test_an_error_in_a_stream_is_an_event(gateway):
    async def fail(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=1), deltas=[TextDelta(text="A", token_ids=[1])])
        await context.abort(grpc.StatusCode.ABORTED, "enough")

    gateway.tokenizer.generate = fail
    answer = await gateway.http.post("/v1/messages", json=ASK | {"stream": True})
    last = answer.text.split("\n\n")[-2]
    name, data = last.split("\n")
    assert name == "event: error"
    error = AnthropicError.model_validate_json(data.removeprefix("data: "))
    assert error.error.type == "api_error"


async def test_an_error_before_a_stream_is_an_answer(gateway):
    why = "prompt is too long: 9 tokens > 8 maximum"

    async def refuse(request, context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, why, (("quire-param", "messages"),))
        yield

    gateway.tokenizer.generate = refuse
    answer = await gateway.http.post("/v1/messages", json=ASK | {"stream": True})
    assert error_of(answer) == (400, "invalid_request_error")
    assert answer.json()["error"]["message"] == why
