"""Requests of the Responses API as requests of the chat API."""

import json

import pytest
from pydantic import TypeAdapter

from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.api.messages.items import Item, stored_items
from gateway.api.messages.opaque_thoughts import opaque
from gateway.api.responses.schema import LOGPROBS, ResponsesBody
from gateway.errors import BadRequest

ASK = {"model": "m", "input": "A fox?"}
TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
PNG = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(**fields):
    return parse(json.dumps(ASK | fields).encode(), ResponsesBody, Ignored())


def chat(**fields):
    asked = read(**fields)
    return asked.chat(asked.input, asked.offered(asked.input))


def said(*items):
    """The messages that these items become."""
    return [message.model_dump(exclude_unset=True) for message in chat(input=list(items)).messages]


@pytest.mark.parametrize("schema", ['{"a":' * 64 + "{}" + "}" * 64, json.dumps({"enum": [0] * 2**16})])
def test_a_schema_that_is_too_deep_or_too_long(schema):
    form = {"type": "json_schema", "name": "n", "schema": json.loads(schema)}
    with pytest.raises(BadRequest) as refused:
        chat(text={"format": form})
    assert refused.value.param == "text.format.schema"


def test_the_plain_case():
    body = chat()
    assert [(one.role, one.content) for one in body.messages] == [("user", "A fox?")]
    assert (body.model, body.limit, body.stream, body.logprobs) == ("m", None, False, False)
    assert body.model_fields_set.isdisjoint({"temperature", "top_p", "top_k", "priority", "seed"})
    assert not body.continue_final_message


def test_fields_with_other_names():
    body = chat(
        instructions="Be brief.",
        max_output_tokens=7,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}},
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=4,
        stream=True,
        user="u",
        timeout=9,
        top_logprobs=2,
    )
    assert [(one.role, one.content) for one in body.messages] == [("system", "Be brief."), ("user", "A fox?")]
    assert (body.limit, body.reasoning_effort, body.stream, body.user) == (7, "low", True, "u")
    assert (body.temperature, body.top_p, body.top_k, body.seed, body.timeout) == (0.5, 0.9, 3, 4, 9)
    assert body.wanted_logprobs == 2
    assert (json.loads(body.shape.json_schema), body.shape.lenient) == (SCHEMA, False)
    assert chat(include=[LOGPROBS]).wanted_logprobs == 0
    assert chat(include=["reasoning.encrypted_content"]).wanted_logprobs is None


def test_parameters_of_the_chat_api():
    fields = {
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.4,
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    ignored = Ignored()
    asked = parse(json.dumps(ASK | fields | {"stop": "END"}).encode(), ResponsesBody, ignored)
    body = asked.chat(asked.input, asked.offered(asked.input))
    assert body.model_dump(include=set(fields)) == fields
    assert (body.stop, ignored.header()) == (["END"], "")
    echo = asked.echo(False, {})
    assert (echo["presence_penalty"], echo["frequency_penalty"]) == (0.2, 0.3)
    assert not chat().model_fields_set & {*fields, "stop"}


@pytest.mark.parametrize("outputs", [{"regex": "a+"}, {"json": SCHEMA}, {"choice": ["a", "b"]}])
def test_structured_outputs(outputs):
    asked = read(structured_outputs=outputs)
    shape = asked.chat(asked.input, asked.offered(asked.input)).shape
    assert shape.param == "structured_outputs"
    again = read(**asked.without_input)
    assert again.chat(again.input, again.offered(again.input)).shape == shape, "as a background response"


def test_an_opaque_thought_stands_for_content_that_is_empty():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": opaque("Hm.")}
    content = [{"type": "reasoning_text", "text": "Ha."}]
    for more, found in (({}, "Hm."), ({"content": []}, "Hm."), ({"content": content}, "Ha.")):
        (message,) = said(thought | more)
        assert message["reasoning_content"] == found
        (stored,) = stored_items(read(input=[thought | more]).input, "0")
        assert stored["content"] == [{"type": "reasoning_text", "text": found}]
        assert "encrypted_content" not in stored


def test_a_conversation_as_an_answer_has_it_is_taken_back():
    whole = {"status": "completed", "id": "x"}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"} | whole
    text = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    hidden = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "?"}
    parts = [{"type": "input_text", "text": "sn"}, {"type": "input_text", "text": "ow"}]
    messages = said(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
        thought | whole,
        {"type": "message", "role": "assistant", "content": [text]} | whole,
        call,
        call | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": parts},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        hidden,
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        call,
        thought,
        call,
        {"type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "❄"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
    )
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    patch = {"name": "patch", "arguments": '{"input": "❄"}'}
    patched = {"id": "c3", "type": "function", "function": patch}
    assert messages == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "snow", "tool_call_id": "c1"},
        {"role": "tool", "content": "", "tool_call_id": "c2"},
        {"role": "assistant", "content": "No.", "tool_calls": calls[:1]},
        {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [calls[0], patched]},
        {"role": "tool", "content": "done", "tool_call_id": "c3"},
    ]


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tools(choice, demanded):
    body = chat(tools=[TOOL | {"strict": True}], tool_choice=choice, parallel_tool_calls=False)
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}
    assert body.tools == [{"type": "function", "function": function}]
    assert (body.tool_choice, body.parallel_tool_calls) == (demanded, False)


def test_allowed_tools_are_those_that_are_offered():
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    body = chat(tools=[TOOL, TOOL | {"name": "wave"}], tool_choice=choice)
    assert [tool["function"]["name"] for tool in body.offered] == ["look"]


SPACE = {"type": "namespace", "name": "mcp__ctx", "tools": [TOOL | {"strict": True}]}


def names(body):
    return [tool[tool["type"]]["name"] for tool in body.tools]


def test_tools_of_a_namespace_are_seen_under_its_name():
    custom = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    body = chat(tools=[SPACE | {"tools": [*SPACE["tools"], custom]}, TOOL])
    assert names(body) == ["mcp__ctx__look", "mcp__ctx__patch", "look"]
    assert (body.tools[0]["function"]["strict"], body.tools[1]["type"]) == (True, "custom")
    assert names(chat(tools=[SPACE | {"name": "mcp__ctx__"}])) == ["mcp__ctx__look"]
    ignored, hosted = Ignored(), {"type": "web_search"}
    tools = [SPACE | {"tools": [hosted, TOOL]}, hosted]
    asked = parse(json.dumps(ASK | {"tools": tools}).encode(), ResponsesBody, ignored)
    assert names(asked.chat(asked.input, asked.offered(asked.input))) == ["mcp__ctx__look"]
    assert ignored.header() == "tools[1], tools.tools[0]"
    assert asked.echo(False, {})["tools"][0]["tools"][0]["name"] == "look"


@pytest.mark.parametrize(
    ("choice", "demanded"),
    [
        ({"type": "function", "name": "look", "namespace": "mcp__ctx"}, "mcp__ctx__look"),
        ({"type": "function", "name": "look", "namespace": None}, "mcp__ctx__look"),
        ({"type": "function", "name": "mcp__ctx__look"}, "mcp__ctx__look"),
        ({"type": "function", "name": "wave"}, "wave"),
    ],
)
def test_a_tool_of_a_namespace_may_be_demanded(choice, demanded):
    body = chat(tools=[SPACE, TOOL | {"name": "wave"}], tool_choice=choice)
    assert body.shape.calls.function == demanded
    assert body.tool_choice == {"type": "function", "function": {"name": demanded}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "namespace", "name": "mcp__ctx"},
        {"type": "function", "name": "look", "namespace": "mcp__ctx"},
    ],
)
def test_tools_of_a_namespace_may_be_allowed(tool):
    wave = {"type": "function", "name": "wave"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [tool, wave]}
    body = chat(tools=[SPACE, TOOL, wave], tool_choice=choice)
    assert [tool["function"]["name"] for tool in body.offered] == ["mcp__ctx__look", "wave"]


def test_tools_may_come_as_items():
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [SPACE]},
        {"role": "user", "content": "A"},
        {"type": "additional_tools", "role": "developer", "tools": [SPACE, TOOL | {"description": "New."}]},
    ]
    asked = read(input=items, tools=[TOOL])
    body = asked.chat(asked.input, asked.offered(asked.input))
    assert names(body) == ["look", "mcp__ctx__look"]
    assert body.tools[0]["function"]["description"] == "New.", "the last one counts"
    assert [message.content for message in body.messages] == ["A"]
    stored = stored_items(asked.input, "r")
    again = TypeAdapter(list[Item]).validate_python(stored)
    assert stored_items(again, "s") == stored
    assert stored[0]["tools"][0]["tools"][0]["name"] == "look"


def test_calls_are_stored_with_their_namespaces():
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    stored = stored_items(read(input=[call | {"namespace": "mcp__ctx"}, call]).input, "r")
    assert [item.get("namespace") for item in stored] == ["mcp__ctx", None]
    assert "namespace" not in stored[1]


def test_null_is_an_absent_field_of_an_item():
    call = {"type": "function_call", "id": None, "call_id": "c", "name": "look", "arguments": None}
    result = {"type": "function_call_output", "call_id": "c", "output": None, "status": None}
    function = {"name": "look", "arguments": ""}
    assert said({"type": None, "id": None, "role": "user", "content": "A"}) == [
        {"role": "user", "content": "A"}
    ]
    assert said(call, result) == [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]


def test_ids_of_calls_may_carry_signatures():
    long = "c" * 4600
    call = {"type": "function_call", "id": "f" * 4600, "call_id": long, "name": "look", "arguments": "{}"}
    asked, result = said(call, {"type": "function_call_output", "call_id": long, "output": "A"})
    assert (asked["tool_calls"][0]["id"], result["tool_call_id"]) == (long, long)


def test_null_is_no_file():
    image = {"type": "input_image", "image_url": PNG, "file_id": None, "detail": None}
    assert read(input=[{"role": "user", "content": [image]}]).input[0].content[0].image_url == PNG


def test_a_text_stands_for_a_file_that_a_tool_gives():
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    output = [{"type": "input_text", "text": "It: "}, file, {"type": "input_image", "image_url": PNG}]
    result = {"type": "function_call_output", "call_id": "c", "output": output}
    ignored = Ignored()
    asked = parse(json.dumps(ASK | {"input": [result]}).encode(), ResponsesBody, ignored)
    assert ignored.header() == "tool_result.file"
    content = asked.chat(asked.input, asked.offered(asked.input)).messages[0].content
    assert content.startswith("It: [a file, which this model cannot read]\x02data:image;")
    with pytest.raises(BadRequest, match=r"'input\[0\].output'"):
        parse(json.dumps(ASK | {"input": [result]}).encode(), ResponsesBody)
    with pytest.raises(BadRequest, match=r"'input\[0\].content'"):
        read(input=[{"role": "user", "content": [file]}])


ELSEWHERE = [
    {"type": "compaction", "encrypted_content": "?"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    {"type": "local_shell_call", "call_id": "s", "status": "completed", "action": {"type": "exec"}},
    {"type": "function_call_output", "call_id": "s", "output": "a file"},
    {"type": "tool_search_output", "call_id": None, "tools": []},
    {"type": "agent_message", "author": "a", "content": [{"type": "encrypted_content"}]},
]


def test_items_of_other_servers_are_left_out_and_named():
    user = {"role": "user", "content": "A"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "snow"}
    ignored, items = Ignored(), [user, *ELSEWHERE, call, result]
    asked = parse(json.dumps(ASK | {"input": items}).encode(), ResponsesBody, ignored)
    messages = asked.chat(asked.input, asked.offered(asked.input)).messages
    assert [(one.role, one.content) for one in messages] == [
        ("user", "A"),
        ("assistant", None),
        ("tool", "snow"),
    ]
    left_out = ("compaction", "web_search_call", "local_shell_call", "tool_search_output", "agent_message")
    assert ignored.header() == ", ".join(f"input.{kind}" for kind in left_out)
    for number in (1, 2, 3, 5, 6):
        with pytest.raises(BadRequest) as refused:
            parse(json.dumps(ASK | {"input": [user, items[number]]}).encode(), ResponsesBody)
        assert refused.value.param == "input[1].type"


def test_what_another_agent_tells_is_what_the_user_says():
    parts = [{"type": "encrypted_content"}, {"type": "input_text", "text": "Look."}]
    told = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": parts}
    assert said(told) == [{"role": "user", "content": "Look."}]


def test_what_has_no_effect_is_not_named_and_what_is_unknown_is():
    ignored = Ignored()
    hints = {"prompt_cache_key": "k", "metadata": {"a": "b"}, "max_tool_calls": 3}
    parse(json.dumps(ASK | hints | {"background": False, "prompt": None}).encode(), ResponsesBody, ignored)
    assert not ignored
    parse(json.dumps(ASK | {"colour": 1}).encode(), ResponsesBody, ignored)
    assert ignored.header() == "colour"


IMAGE = {"type": "input_image", "image_url": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "tool", "content": "A"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
        ({"input": [{"type": ["message"]}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "reasoning", "content": [{}]}]}, "input[0].content[0].text"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "custom", "name": "x", "format": {}}]}, "tools[0].format.type"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        ({"tools": [SPACE | {"tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [SPACE, SPACE | {"name": "mcp__ctx__"}]}, "tools"),
        ({"tools": [SPACE, TOOL | {"name": "mcp__ctx__look"}]}, "tools"),
        ({"tools": [SPACE | {"name": "a" * 251}]}, "tools"),
        ({"input": [{"type": "additional_tools", "tools": [{"type": "custom"}]}]}, "input[0].tools[0].name"),
        ({"tools": [SPACE], "tool_choice": {"type": "function", "name": ["look"]}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [3]}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "tools": 3}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(name): "" for name in range(17)}}, "metadata"),
        ({"temperature": 101}, "temperature"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"conversation": {"name": "x"}}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_what_is_refused(fields, param):
    with pytest.raises(BadRequest) as refused:
        chat(**fields)
    assert refused.value.param == param


def test_a_call_is_demanded_of_no_tool():
    with pytest.raises(BadRequest, match="there are no tools"):
        assert chat(tool_choice="required").shape
