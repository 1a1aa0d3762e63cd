"""Offered functions, and calls and results of earlier turns, reach the tokenizer as the client sent them."""

import json

import grpc
import pytest

from gateway.api.anthropic.schema import MessagesBody
from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.api.messages.tools import MAX_ID
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.responses.schema import ResponsesBody
from gateway.errors import BadRequest
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP
from proto.tokenizer_pb2 import (
    JSON_CALLS,
    AnswerFormat,
    CallShape,
    InputGrammar,
    PromptInfo,
    Shape,
    TextChunk,
    TextDelta,
)

MESSAGES = [{"role": "user", "content": "What is the weather in Bergen?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "é", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": True}, "cache_control": {}}
ARGUMENTS = '{"city": "Bergen"}'
CALL = {
    "id": "call_1",
    "type": "function",
    "index": 0,
    "function": {"name": "weather", "arguments": ARGUMENTS},
}


async def conversation(gateway, **fields):
    answer = await gateway.http.post(
        "/v1/chat/completions", json={"model": "m", "messages": MESSAGES} | fields
    )
    assert answer.status_code == 200, answer.text
    return gateway.tokenizer.requests[-1].chat


def allowed(*names, **more):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools} | more}


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ({}, [WEATHER, CLOCK]),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, [WEATHER, CLOCK]),
        ({"tool_choice": "none"}, []),
        ({"tool_choice": allowed("clock", "unknown")}, [CLOCK]),
        ({"tool_choice": allowed()}, []),
    ],
)
async def test_what_is_offered(gateway, choice, offered):
    chat = await conversation(gateway, tools=[WEATHER, CLOCK], **choice)
    assert json.loads(chat.tools or "[]") == offered


async def test_a_flat_function_is_one_all_the_same(gateway):
    """As in `/v1/responses`: Cursor sends such."""
    flat = {"type": "function", **WEATHER["function"], "strict": False}
    choice = {"type": "function", "name": "weather"}
    chat = await conversation(gateway, tools=[flat, CLOCK], tool_choice=choice)
    weather = {"type": "function", "function": WEATHER["function"] | {"strict": False}}
    assert json.loads(chat.tools) == [weather, CLOCK]
    assert gateway.tokenizer.requests[-1].shape.calls.function == "weather"


async def test_a_flat_custom_tool_is_one_all_the_same(gateway):
    grammar = {"syntax": "lark", "definition": 'start: "a"'}
    flat = {"type": "custom", "name": "patch", "format": {"type": "grammar", **grammar}}
    await conversation(gateway, tools=[flat, {"type": "custom", "name": "say", "description": "Says."}])
    request = gateway.tokenizer.requests[-1]
    assert [one["function"]["name"] for one in json.loads(request.chat.tools)] == ["patch", "say"]
    assert request.shape.calls == CallShape(inputs={"patch": InputGrammar(**grammar)})


@pytest.mark.parametrize("kind", ["none", "auto", "required"])
async def test_a_choice_without_a_name_may_be_an_object(gateway, kind):
    """Cursor sends such."""
    answers = []
    for choice in (kind, {"type": kind}):
        await conversation(gateway, tools=[PLAIN], tool_choice=choice)
        request = gateway.tokenizer.requests[-1]
        answers.append((request.chat.tools, request.shape))
    assert answers[0] == answers[1]
    asked = {"model": "m", "input": "A", "tools": [{"type": "function", "name": "a"}], "store": False}
    answer = await gateway.http.post("/v1/responses", json=asked | {"tool_choice": {"type": kind}})
    assert (answer.status_code, answer.json()["tool_choice"]) == (200, kind)


async def test_a_conversation_as_responses_have_it(gateway):
    """Cursor posts it to `/v1/chat/completions`, and expects its answers."""
    body = {
        "model": "m",
        "input": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "call_1", "output": "9 °C"},
        ],
        "tools": [{"type": "function", **WEATHER["function"]}],
        "instructions": "You are terse.",
        "tool_choice": {"type": "auto"},
        "reasoning": {"effort": "medium", "summary": "auto"},
        "stream": True,
    }
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.text.startswith('data: {"id":"chatcmpl-')
    assert answer.headers["x-quire-ignored"] == "reasoning.summary"
    chat = gateway.tokenizer.requests[-1].chat
    assert [one.role for one in chat.messages] == ["system", "system", "user", "assistant", "tool"]
    assert [one.content for one in chat.messages] == ["You are terse.", "Be brief.", "Weather?", "", "9 °C"]
    assert chat.messages[3].tool_calls[0].arguments == ARGUMENTS
    assert json.loads(chat.template_arguments) == {"reasoning_effort": "medium"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"input": []}, "messages"),
        ({"input": [], "instructions": "Be brief."}, "messages"),
        ({"instructions": "Be brief."}, "messages"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": ""}]}, "input[0].name"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0]"),
        ({"input": [], "messages": []}, "messages"),
    ],
)
def test_no_conversation(fields, param):
    with pytest.raises(BadRequest) as refused:
        parse(json.dumps(fields).encode(), ChatBody, Ignored())
    assert refused.value.param == param


def test_two_conversations():
    """An empty one is none, and `messages` go before `input`."""
    first, last = ([{"role": "user", "content": text}] for text in "AB")
    for given, messages, said in (("B", [], "B"), ("", first, "A"), (last, first, "A")):
        asked, ignored = json.dumps({"model": "m", "input": given, "messages": messages}).encode(), Ignored()
        assert [one.content for one in parse(asked, ChatBody, ignored).messages] == [said]
        assert ignored.header() == ("input" if given == last else "")
    with pytest.raises(BadRequest, match="one conversation") as refused:
        parse(asked, ChatBody)
    assert refused.value.param == "input"


def test_instructions_go_with_an_input():
    asked = json.dumps(
        {"model": "m", "instructions": "Be brief.", "messages": [{"role": "user", "content": "A"}]}
    )
    ignored = Ignored()
    assert [one.content for one in parse(asked.encode(), ChatBody, ignored).messages] == ["A"]
    assert ignored.header() == "instructions"
    with pytest.raises(BadRequest) as refused:
        parse(asked.encode(), ChatBody)
    assert refused.value.param == "instructions"


async def test_a_choice_without_tools(gateway):
    for choice in ("none", "auto"):
        assert (await conversation(gateway, tools=[], tool_choice=choice)).tools == ""


NAMED = {"type": "function", "function": {"name": "clock"}}
PLAIN = {"type": "function", "function": {"name": "plain"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, CallShape()),
        ({"tools": [PLAIN]}, None),
        ({"tools": [WEATHER, PLAIN], "parallel_tool_calls": False}, None),
        ({"parallel_tool_calls": False}, CallShape(single=True)),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, CallShape(required=True)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, CallShape(required=True, single=True)),
        ({"tool_choice": NAMED}, CallShape(required=True, single=True, function="clock")),
        ({"tool_choice": allowed("weather")}, None),
        ({"tool_choice": allowed("clock", mode="required")}, CallShape(required=True)),
    ],
)
async def test_which_calls_an_answer_may_have(gateway, fields, expected):
    await conversation(gateway, **{"tools": [WEATHER, CLOCK], **fields})
    shape = gateway.tokenizer.requests[-1].shape
    assert (shape.calls if shape.HasField("calls") else None) == expected
    assert shape.param == ("" if expected is None else "tools")


async def test_another_shape_wins_over_strict(gateway):
    await conversation(gateway, tools=[CLOCK], guided_regex="a")
    assert gateway.tokenizer.requests[-1].shape.regex == "a"


async def test_a_response_format_leaves_calls_possible(gateway):
    json_object = {"type": "json_object"}
    await conversation(gateway, tools=[PLAIN], response_format=json_object, parallel_tool_calls=False)
    shape = gateway.tokenizer.requests[-1].shape
    expected = Shape(json_schema='{"type":"object"}', param="response_format")
    expected.or_calls.single = True
    assert shape == expected
    loose = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}
    await conversation(gateway, tools=[CLOCK], response_format=loose)
    shape = gateway.tokenizer.requests[-1].shape
    assert (shape.json_schema, shape.lenient, shape.or_calls) == ('{"type":"null"}', True, CallShape())
    assert shape.HasField("or_calls")
    for fields in ({"tool_choice": "none"}, {"tools": []}):
        await conversation(gateway, **{"tools": [CLOCK], **fields}, response_format=json_object)
        assert not gateway.tokenizer.requests[-1].shape.HasField("or_calls")
    await conversation(gateway, tools=[PLAIN], response_format={"type": "text"})
    assert not gateway.tokenizer.requests[-1].HasField("shape")


async def test_a_structural_tag_leaves_its_text_free_for_calls(gateway):
    tag = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}
    await conversation(gateway, tools=[PLAIN], response_format={"type": "structural_tag", **tag})
    shape = gateway.tokenizer.requests[-1].shape
    assert json.loads(shape.structural_tag) == tag
    assert not shape.HasField("or_calls")


async def test_a_demanded_call_has_no_text_for_a_response_format(gateway):
    await conversation(
        gateway, tools=[CLOCK], tool_choice="required", response_format={"type": "json_object"}
    )
    assert gateway.tokenizer.requests[-1].shape.calls == CallShape(required=True)
    asked = {"model": "m", "messages": MESSAGES, "tools": [CLOCK], "tool_choice": "required"}
    refused = await gateway.http.post("/v1/chat/completions", json=asked | {"guided_regex": "a"})
    assert refused.status_code == 400
    assert "only one can be followed" in refused.json()["error"]["message"]


async def test_a_named_call_ends_as_openai_s(gateway):
    gateway.tokenizer.generate = saying(ONE, 4)
    ask = {"model": "m", "messages": MESSAGES, "tools": [WEATHER]}
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, reason in ((named, "stop"), ("required", "tool_calls")):
        (one,) = (await gateway.openai().chat.completions.create(**ask, tool_choice=choice)).choices
        assert (one.finish_reason, one.message.content, len(one.message.tool_calls)) == (reason, None, 1)


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}, {"content": []}])
async def test_a_call_and_its_result(gateway, content):
    turns = [
        *MESSAGES,
        {
            "role": "assistant",
            "refusal": None,
            "annotations": [],
            "tool_calls": [CALL],
            "id": "m1",
            **content,
        },
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "name": "weather",
            "content": [{"type": "text", "text": "9 °C"}],
        },
        {
            "role": "assistant",
            "content": "Nine.",
            "tool_calls": [],
            "reasoning_content": "Hm.",
            "refusal": "no",
        },
        {"role": "tool", "tool_call_id": "call_2", "content": None},
    ]
    _, call, result, said, empty = (await conversation(gateway, messages=turns)).messages
    assert (call.content, call.no_content) == ("", content in ({"content": None}, {}))
    (one,) = call.tool_calls
    assert (one.id, one.name, one.arguments) == ("call_1", "weather", ARGUMENTS)
    assert (result.tool_call_id, result.name, result.content) == ("call_1", "weather", "9 °C")
    assert (said.content, said.reasoning, list(said.tool_calls), said.no_content) == (
        "Nine.",
        "Hm.",
        [],
        False,
    )
    assert (empty.content, empty.no_content) == ("", True)


async def test_arguments_that_are_an_object(gateway):
    call = {"function": {"name": "weather", "arguments": {"city": "Tromsø"}}}
    chat = await conversation(gateway, messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}])
    assert json.loads(chat.messages[1].tool_calls[0].arguments) == {"city": "Tromsø"}


@pytest.mark.parametrize("kind", ["function", "custom"])
async def test_null_is_an_absent_field_of_a_call(gateway, kind):
    called = (
        {"name": "weather", "arguments": None} if kind == "function" else {"name": "weather", "input": "A"}
    )
    call = {"id": None, "type": kind, "index": None, kind: called}
    chat = await conversation(gateway, messages=[*MESSAGES, {"role": "assistant", "tool_calls": [call]}])
    (one,) = chat.messages[1].tool_calls
    assert (one.id, one.name, one.arguments) == (
        "",
        "weather",
        "" if kind == "function" else '{"input": "A"}',
    )


async def test_ids_of_calls_may_carry_signatures(gateway):
    long = "call_1__thought__" + "A" * 4600
    turns = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [CALL | {"id": long}]},
        {"role": "tool", "tool_call_id": long, "content": "9"},
    ]
    _, call, result = (await conversation(gateway, messages=turns)).messages
    assert (call.tool_calls[0].id, result.tool_call_id) == (long, long)
    turns[1]["tool_calls"] = [CALL | {"id": "A" * (MAX_ID + 1)}]
    ask = {"model": "m", "messages": turns}
    assert (await gateway.http.post("/v1/chat/completions", json=ask)).status_code == 400


async def test_an_effort_is_the_template_s_to_know(gateway):
    assert json.loads((await conversation(gateway, reasoning_effort="low")).template_arguments) == {
        "reasoning_effort": "low"
    }
    chat = await conversation(
        gateway, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True, "a": 1}
    )
    assert json.loads(chat.template_arguments) == {
        "reasoning_effort": "none", "thinking": False, "enable_thinking": True, "a": 1
    }  # fmt: skip


async def test_a_budget_of_thinking_tokens(gateway):
    for budget in (0, 7):
        await conversation(gateway, thinking_token_budget=budget)
        request = gateway.tokenizer.requests[-1]
        assert (request.HasField("thinking_budget"), request.thinking_budget) == (True, budget)
        assert not request.lenient_budget
    await conversation(gateway)
    assert not gateway.tokenizer.requests[-1].HasField("thinking_budget")


FORM = AnswerFormat(
    thought_begin="<think>",
    thought_end="</think>",
    call_begin=["<tool_call>"],
    call_end="</tool_call>",
    call_syntax=JSON_CALLS,
)
ONE = f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>'
ANSWER = f"<think>Hm.</think>Let me see.\n{ONE}\n{ONE}"


def saying(text, size, ended=STOP, said_as=FORM):
    async def generate(request, context):
        form = AnswerFormat()
        form.CopyFrom(said_as)
        form.call_demanded = request.shape.calls.required
        yield TextChunk(prompt=PromptInfo(tokens=1, format=form))
        place = request.resumed[0].text_length if request.resumed else 0
        while place < len(text):
            end = min(len(text), place + size)
            reason = ended if end == len(text) else NOT_FINISHED
            yield TextChunk(deltas=[TextDelta(text=text[place:end], token_ids=[end], finish_reason=reason)])
            place = end
            if place == 60 and not request.resumed:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))

    return generate


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("parallel", [True, False])
async def test_the_client_s_calls_and_thoughts(gateway, size, parallel):
    """Whole and streamed, through the death of a tokenizer process."""
    gateway.tokenizer.generate = saying(ANSWER, size)
    ask = {"model": "m", "messages": MESSAGES, "tools": [WEATHER], "parallel_tool_calls": parallel}
    whole = (await gateway.openai().chat.completions.create(**ask)).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert (whole.message.content, whole.message.reasoning_content) == ("Let me see.", "Hm.")
    calls = whole.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", ARGUMENTS)] * (
        1 + parallel
    )
    assert len({call.id for call in calls}) == len(calls)
    content = reasoning = ""
    streamed, reasons = [], set()
    async for chunk in await gateway.openai().chat.completions.create(**ask, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning_content", "")
        streamed += choice.delta.tool_calls or []
        reasons.add(choice.finish_reason)
    assert (content, reasoning, reasons) == ("Let me see.", "Hm.", {None, "tool_calls"})
    assert [call.index for call in streamed] == list(range(len(calls)))
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    assert len(gateway.tokenizer.requests) == (2 if size == 1000 else 4)


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_call_that_was_cut_off_is_no_text(gateway, choice):
    """Whole and streamed."""
    gateway.tokenizer.generate = saying(
        ANSWER.split("</think>")[1][:-20].replace("Let me see.", ""), 4, LENGTH
    )
    ask = {"model": "m", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice}
    whole = (await gateway.openai().chat.completions.create(**ask)).choices[0]
    assert whole.finish_reason == "length"
    assert [call.function.arguments for call in whole.message.tool_calls] == [ARGUMENTS]
    assert not whole.message.content
    async for chunk in await gateway.openai().chat.completions.create(**ask, stream=True):
        assert not chunk.choices[0].delta.content
    gateway.tokenizer.generate = saying(ONE[:-20], 4, LENGTH)
    (only,) = (await gateway.openai().chat.completions.create(**ask)).choices
    assert (only.finish_reason, only.message.content, only.message.tool_calls) == ("length", "", None)


async def test_a_thought_may_be_left_out(gateway):
    gateway.tokenizer.generate = saying("<think>Hm.</think>Yes.", 1)
    ask = {"model": "m", "messages": MESSAGES, "extra_body": {"include_reasoning": False}}
    whole = await gateway.openai().chat.completions.create(**ask)
    assert whole.choices[0].message.content == "Yes."
    assert "reasoning" not in whole.choices[0].message.model_extra
    assert whole.usage.completion_tokens_details.reasoning_tokens == len("Hm.</think>")
    content = ""
    async for chunk in await gateway.openai().chat.completions.create(**ask, stream=True):
        content += chunk.choices[0].delta.content or ""
        assert "reasoning" not in chunk.choices[0].delta.model_extra
    assert content == "Yes."


async def test_thoughts_are_counted(gateway):
    gateway.tokenizer.generate = saying("<think>Hm.</think>Yes.", 1)
    usage = (await gateway.openai().chat.completions.create(model="m", messages=MESSAGES)).usage
    assert usage.completion_tokens_details.reasoning_tokens == len("Hm.</think>")


@pytest.mark.parametrize("thinks", [True, False])
async def test_an_answer_without_thoughts_has_no_such_fields(gateway, thinks):
    form = AnswerFormat(call_begin=["<tool_call>"], call_end="</tool_call>", call_syntax=JSON_CALLS)
    gateway.tokenizer.generate = saying(ONE, 4, said_as=FORM if thinks else form)
    ask = {"model": "m", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required"}
    whole = (await gateway.http.post("/v1/chat/completions", json=ask)).json()
    message = whole["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1
    assert not {"reasoning", "reasoning_content"} & set(message)
    details = whole["usage"].get("completion_tokens_details")
    assert details == ({"reasoning_tokens": 0} if thinks else None)


PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patches."}}
GRAMMAR = {"syntax": "regex", "definition": "a+"}
PATCH_AS = {"type": "custom", "custom": PATCH["custom"] | {"format": {"type": "grammar", "grammar": GRAMMAR}}}


async def test_a_custom_tool_s_call_is_a_text_and_follows_its_grammar(gateway):
    said = json.dumps({"name": "patch", "arguments": {"input": 'a"\n'}})
    gateway.tokenizer.generate = saying(f"<tool_call>{said}</tool_call>", 7)
    ask = {"model": "m", "messages": MESSAGES, "tools": [WEATHER, PATCH_AS]}
    message = (await gateway.openai().chat.completions.create(**ask)).choices[0].message
    (call,) = message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "patch", 'a"\n')
    request = gateway.tokenizer.requests[-1]
    assert request.shape.calls == CallShape(inputs={"patch": InputGrammar(**GRAMMAR)})
    told = json.loads(request.chat.tools)[1]["function"]
    assert told["description"] == "Patches.\n\n`input` follows this grammar (regex):\na+"
    streamed = [
        piece
        async for chunk in await gateway.openai().chat.completions.create(**ask, stream=True)
        for piece in chunk.choices[0].delta.tool_calls or ()
    ]
    assert [(piece.index, piece.type, piece.custom) for piece in streamed] == [
        (0, "custom", {"name": "patch", "input": 'a"\n'})
    ]
    history = [*MESSAGES, message.model_dump(exclude_none=True)]
    named = {"type": "custom", "custom": {"name": "patch"}}
    chat = await conversation(gateway, messages=history, tools=[PATCH, WEATHER], tool_choice=named)
    assert json.loads(chat.messages[1].tool_calls[0].arguments) == {"input": 'a"\n'}
    assert gateway.tokenizer.requests[-1].shape.calls == CallShape(
        required=True, single=True, function="patch"
    )
    await conversation(gateway, tools=[PATCH, WEATHER])
    assert not gateway.tokenizer.requests[-1].HasField("shape")


FLAT = {"name": "weather", "parameters": SCHEMA}


@pytest.mark.parametrize(
    ("kind", "fields", "tool", "hosted"),
    [
        (ChatBody, {"messages": MESSAGES}, WEATHER, {"type": "web_search"}),
        (ResponsesBody, {"input": "A"}, FLAT | {"type": "function"}, {"type": "web_search"}),
        (
            ResponsesBody,
            {"input": "A"},
            FLAT | {"type": "function"},
            {"type": "mcp", "server_label": "notes"},
        ),
        (
            MessagesBody,
            {"messages": MESSAGES, "max_tokens": 9},
            {"name": "weather", "input_schema": SCHEMA},
            {"type": "web_search_20250305", "name": "web_search"},
        ),
    ],
)
def test_tools_that_run_elsewhere_are_left_out_and_named(kind, fields, tool, hosted):
    raw = json.dumps({"model": "m", "tools": [hosted, tool]} | fields).encode()
    ignored = Ignored()
    body = parse(raw, kind, ignored)
    assert ignored.header() == "tools[0]"
    assert [_name(one) for one in body.tools] == ["weather"]
    with pytest.raises(BadRequest) as refused:
        parse(raw, kind)
    assert (refused.value.param, refused.value.error_code) == ("tools[0].type", "unsupported_parameter")


def _name(tool):
    return tool["function"]["name"] if isinstance(tool, dict) else tool.name
