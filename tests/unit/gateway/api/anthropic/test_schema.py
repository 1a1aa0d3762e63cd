"""Requests of Anthropic's API as requests of the chat API."""

import json

import pytest

from gateway.api.anthropic.schema import MAX_USER, CountBody, MessagesBody
from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.errors import BadRequest

ASK = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "A fox"}]}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
AS_FUNCTION = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}


def chat(kind=MessagesBody, **fields):
    return parse(json.dumps(ASK | fields).encode(), kind, Ignored()).chat()


def said(*turns):
    """The messages that these turns become."""
    found = chat(messages=[{"role": role, "content": content} for role, content in turns]).messages
    return [message.model_dump(exclude_unset=True) for message in found]


def test_the_plain_case():
    body = chat()
    assert (body.model, body.max_tokens, body.stream, body.stop) == ("m", 5, False, [])
    assert body.model_fields_set.isdisjoint({"temperature", "top_p", "top_k", "priority", "seed"})
    assert not body.continue_final_message


@pytest.mark.parametrize("place", ["output_config", "output_format"])
@pytest.mark.parametrize("schema", ['{"a":' * 64 + "{}" + "}" * 64, json.dumps({"enum": [0] * 2**16})])
def test_a_schema_that_is_too_deep_or_too_long(place, schema):
    form = {"type": "json_schema", "schema": json.loads(schema)}
    with pytest.raises(BadRequest) as refused:
        chat(**{place: {"format": form} if place == "output_config" else form})
    assert refused.value.param == {"output_config": "output_config.format.schema"}.get(
        place, f"{place}.schema"
    )


def test_fields_with_other_names():
    system = {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}
    fields = {
        "system": [system, {"type": "text", "text": " brief."}],
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u" * 300},
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "stream": True,
        "seed": 3,
        "timeout": 9,
        "cache_salt": "s",
    }
    body = chat(**fields)
    assert [(one.role, one.content) for one in body.messages] == [("system", "Be brief."), ("user", "A fox")]
    assert (body.stop, body.user, body.stream) == (["END"], "u" * MAX_USER, True)
    assert (body.temperature, body.top_k, body.top_p, body.seed) == (0.5, 7, 0.9, 3)
    assert (body.timeout, body.cache_salt) == (9, "s")


def test_a_conversation_with_calls_and_results():
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "❄"}}
    hidden = {"type": "redacted_thinking", "data": "?"}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "snow"}]}
    bare = {"type": "tool_result", "tool_use_id": "c2", "content": None, "is_error": None}
    text = {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}}
    messages = said(
        ("user", "Look"),
        ("assistant", [thought, hidden, {"type": "text", "text": "I do."}]),
        ("assistant", [call, call | {"id": "c2"}]),
        ("user", [result, bare, text, text]),
    )
    function = {"name": "look", "arguments": '{"at": "❄"}'}
    calls = [{"id": name, "type": "function", "function": function} for name in ("c1", "c2")]
    assert messages == [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "I do.", "reasoning_content": "Hm."},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "snow", "tool_call_id": "c1"},
        {"role": "tool", "content": "", "tool_call_id": "c2"},
        {"role": "user", "content": "And now?And now?"},
    ]


def test_null_is_an_absent_field_of_a_part():
    call = {"type": "tool_use", "id": "c", "name": "look", "input": None}
    result = {"type": "tool_result", "tool_use_id": "c", "content": None, "is_error": None}
    function = {"name": "look", "arguments": "{}"}
    assert said(("assistant", [call]), ("user", [result])) == [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": "", "tool_call_id": "c"},
    ]


def test_parts_of_other_servers_are_left_out_and_named():
    searched = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "A"}}
    page = {"type": "web_search_result", "url": "http://a.b", "title": "A", "encrypted_content": "?"}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [page]}
    asked = {"type": "mcp_tool_use", "id": "m", "name": "look", "server_name": "a", "input": {}}
    told = {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "snow"}]}
    summary = {"type": "compaction", "content": "They met a fox. "}
    text = {"type": "text", "text": "It is so.", "citations": []}
    parts = [summary, searched, found, asked, told, {"type": "compaction", "content": None}, text]
    turns = [{"role": "assistant", "content": parts}, {"role": "user", "content": "And?"}]
    ignored = Ignored()
    body = parse(json.dumps(ASK | {"messages": turns}).encode(), MessagesBody, ignored).chat()
    assert [(one.role, one.content) for one in body.messages] == [
        ("assistant", "They met a fox. It is so."),
        ("user", "And?"),
    ]
    left_out = ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "mcp_tool_result", "compaction")
    assert ignored.header() == ", ".join(f"messages.{kind}" for kind in left_out)
    for part in parts[:-1]:
        strictly = json.dumps(ASK | {"messages": [{"role": "assistant", "content": [part]}]}).encode()
        with pytest.raises(BadRequest, match=r"'messages\[0\].content'"):
            parse(strictly, MessagesBody)
        with pytest.raises(BadRequest, match=r"'messages\[0\].content'"):
            chat(messages=[{"role": "user", "content": [part]}])


def test_ids_of_calls_may_carry_signatures():
    long = "c" * 4600
    call = {"type": "tool_use", "id": long, "name": "look", "input": {}}
    asked, result = said(("assistant", [call]), ("user", [{"type": "tool_result", "tool_use_id": long}]))
    assert (asked["tool_calls"][0]["id"], result["tool_call_id"]) == (long, long)


def test_documents_and_search_results_are_texts():
    plain = {"type": "text", "media_type": "text/plain", "data": "Foxes sleep."}
    parts = {"type": "content", "content": [{"type": "text", "text": "Owls"}, {"type": "text", "text": "."}]}
    text = {"type": "text", "text": "Who sleeps?"}
    document = {"type": "document", "source": plain, "title": "Foxes", "citations": {"enabled": True}}
    found = {"type": "search_result", "source": "http://a.b", "title": "C", "content": parts["content"]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [found, text]}
    messages = said(("user", [document, {"type": "document", "source": parts}, text]), ("user", [result]))
    assert [one["content"] for one in messages] == [
        "Foxes\n\nFoxes sleep.\n\nOwls.\n\nWho sleeps?",
        "C\n\nhttp://a.b\n\nOwls.\n\nWho sleeps?",
    ]


def test_later_system_messages_are_part_of_what_the_user_says():
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}}
    found = {"type": "tool_reference", "tool_name": "look"}
    messages = said(
        ("system", "Be brief."),
        ("user", "Look"),
        ("system", [{"type": "text", "text": "It is cold."}]),
        ("assistant", [call]),
        ("user", [{"type": "tool_result", "tool_use_id": "c", "content": [found]}]),
        ("system", "It is late."),
        ("user", [change]),
        ("user", "And?"),
    )
    assert [(one["role"], one.get("content")) for one in messages] == [
        ("system", "Be brief."),
        ("user", "Look"),
        ("user", "<system-reminder>\nIt is cold.\n</system-reminder>"),
        ("assistant", None),
        ("tool", "look\n"),
        ("user", "<system-reminder>\nIt is late.\n</system-reminder>"),
        ("user", "And?"),
    ]


def test_notes_alone_are_a_turn_where_the_model_answers_it():
    note = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "look"}}
    (only,) = said(("user", [note]))
    assert (only["role"], only["content"]) == ("user", "")
    assert [one["role"] for one in said(("user", "Hi"), ("assistant", "Yes?"), ("user", [note]))] == [
        "user",
        "assistant",
        "user",
    ]


def test_a_text_before_a_result_comes_before_it():
    result = {"type": "tool_result", "tool_use_id": "c", "content": "snow"}
    messages = said(("user", [{"type": "text", "text": "A"}, result, {"type": "text", "text": "B"}]))
    assert [(one["role"], one["content"]) for one in messages] == [
        ("user", "A"),
        ("tool", "snow"),
        ("user", "B"),
    ]


@pytest.mark.parametrize(
    ("last", "roles"),
    [
        ("", ["user"]),
        ([], ["user"]),
        ([{"type": "redacted_thinking", "data": "x"}], ["user"]),
        ([{"type": "thinking", "thinking": "Hm."}], ["user", "assistant"]),
        ([{"type": "tool_result", "tool_use_id": "c", "content": "snow"}], ["user", "tool"]),
    ],
)
def test_an_answer_that_has_not_begun_begins(last, roles):
    body = chat(messages=[*ASK["messages"], {"role": "assistant", "content": last}])
    assert ([one.role for one in body.messages], body.continue_final_message) == (roles, False)
    (only,) = said(("assistant", ""))
    assert (only["role"], only["content"]) == ("user", "")


@pytest.mark.parametrize(("role", "goes_on"), [("assistant", True), ("user", False)])
def test_the_answer_goes_on_with_what_the_assistant_began(role, goes_on):
    body = chat(messages=[*ASK["messages"], {"role": role, "content": "It"}])
    assert body.continue_final_message == goes_on


@pytest.mark.parametrize(
    ("choice", "demanded", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}, True),
    ],
)
def test_tools(choice, demanded, parallel):
    body = chat(tools=[TOOL], tool_choice=choice)
    assert body.tools == [AS_FUNCTION]
    assert (body.tool_choice, body.parallel_tool_calls) == (demanded, parallel)


@pytest.mark.parametrize(
    ("thinking", "wanted", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
        ({"type": "adaptive", "display": "summarized"}, True, None),
        ({"type": "disabled"}, False, None),
    ],
)
def test_thinking(thinking, wanted, budget):
    body = chat(thinking=thinking)
    assert body.variables == {"enable_thinking": wanted, "thinking": wanted}
    assert (body.thinking_token_budget, body.lenient_budget) == (budget, True)
    assert chat().variables == {}


def test_an_effort_and_a_format():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = chat(output_config={"effort": "max", "format": {"type": "json_schema", "schema": schema}})
    assert body.reasoning_effort == "high"
    assert json.loads(body.shape.json_schema) == schema
    body = chat(output_format={"type": "json_schema", "schema": schema})
    assert json.loads(body.shape.json_schema) == schema


def test_hints_have_no_effect_and_are_not_named():
    ignored = Ignored()
    hints = {"cache_control": {"type": "ephemeral"}, "service_tier": "auto", "context_management": {}}
    parse(json.dumps(ASK | hints | {"container": None, "mcp_servers": []}).encode(), MessagesBody, ignored)
    assert not ignored
    parse(json.dumps(ASK | {"colour": 1}).encode(), MessagesBody, ignored)
    assert ignored.header() == "colour"


def test_counting_needs_no_limit():
    body = parse(b'{"model": "m", "messages": [{"role": "user", "content": "A"}]}', CountBody).chat()
    assert body.max_tokens is None


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
PDF = {"type": "document", "source": IMAGE["source"]}
RESULT = {"type": "tool_result", "tool_use_id": "c"}


def test_a_text_stands_for_a_file_that_a_tool_gives():
    call = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
    text = {"type": "text", "text": "It: "}
    turns = [
        {"role": "user", "content": "Read"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [RESULT | {"content": [text, PDF]}, PDF]},
        {"role": "user", "content": [PDF]},
    ]
    ignored = Ignored()
    body = parse(json.dumps(ASK | {"messages": turns}).encode(), MessagesBody, ignored).chat()
    unread = "[a file, which this model cannot read]"
    assert [(one.role, one.content) for one in body.messages[2:]] == [
        ("tool", f"It: {unread}"),
        ("user", unread),
        ("user", unread),
    ]
    assert ignored.header() == "tool_result.file"
    attached = {"messages": [*turns, {"role": "assistant", "content": "Done."}, turns[-1]]}
    with pytest.raises(BadRequest) as refused:
        chat(**attached)
    assert refused.value.param == "messages[5].content[0].source"
    with pytest.raises(BadRequest):
        parse(json.dumps(ASK | {"messages": turns}).encode(), MessagesBody)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "A"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].source"),
        (
            {"messages": [{"role": "user", "content": [RESULT | {"content": [{"type": "text"}]}]}]},
            "messages[0].content[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [PDF]}]}, "messages[0].content[0].source"),
        ({"system": [IMAGE]}, "system"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "look"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}, "messages": []}, "thread"),
        ({"temperature": 101}, "temperature"),
        ({"output_config": {"format": {"type": "json_schema", "schema": []}}}, "output_config.format.schema"),
    ],
)
def test_what_is_refused(fields, param):
    with pytest.raises(BadRequest) as refused:
        chat(**fields)
    assert param is None or refused.value.param == param


def added(tool):
    part = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}
    return {"role": "system", "content": [part]}


@pytest.mark.parametrize("kind", [MessagesBody, CountBody])
def test_tools_that_notes_define_are_seen_from_the_beginning(kind):
    other = TOOL | {"name": "hear"}
    turns = [*ASK["messages"], added(TOOL | {"description": "Old."}), added(TOOL), added(other)]
    found = chat(kind, messages=turns, tools=[TOOL | {"description": "Older."}])
    assert found.tools == [
        AS_FUNCTION,
        AS_FUNCTION | {"function": AS_FUNCTION["function"] | {"name": "hear"}},
    ]
    assert len(chat(kind, messages=[*ASK["messages"], added(other)]).tools) == 1


@pytest.mark.parametrize("tool", [None, "look", {"name": 3}, {"name": {}}, {"type": "mcp_toolset"}])
def test_notes_that_define_no_function_add_none(tool):
    assert not chat(messages=[*ASK["messages"], added(tool)]).tools


def test_a_tool_of_a_note_that_is_wrong_is_refused():
    with pytest.raises(BadRequest) as refused:
        chat(messages=[*ASK["messages"], added({"name": "look"})])
    assert refused.value.param == "tools[0].input_schema"


@pytest.mark.parametrize("name", [[], {}, 7])
def test_a_tool_whose_name_is_no_text_is_refused_beside_a_note(name):
    with pytest.raises(BadRequest) as refused:
        chat(messages=[*ASK["messages"], added(TOOL)], tools=[TOOL | {"name": name}])
    assert refused.value.param == "tools[0].name"


def test_a_call_is_demanded_of_no_tool():
    with pytest.raises(BadRequest, match="there are no tools"):
        assert chat(tool_choice={"type": "any"}).shape
