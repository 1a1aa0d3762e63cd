"""Requests of Ollama's API as requests of the chat API."""

import json

import pytest

from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.api.ollama.schema import (
    EmbedBody,
    OllamaChatBody,
    OllamaGenerateBody,
    PromptEmbedBody,
)
from gateway.errors import BadRequest

MESSAGES = [{"role": "user", "content": "A fox"}]


def body(kind, ignored=None, **fields):
    return parse(
        json.dumps({"model": "m", **fields}).encode(), kind, Ignored() if ignored is None else ignored
    )


def chat(**fields):
    return body(OllamaChatBody, **{"messages": MESSAGES, **fields}).chat("m")


def generate(**fields):
    return body(OllamaGenerateBody, **{"prompt": "A fox", **fields}).chat("m")


def said(messages):
    return [one.model_dump(exclude_unset=True) for one in chat(messages=messages).messages]


def test_the_plain_case():
    asked = chat()
    assert asked.stream, "Ollama streams unless it is told not to"
    assert not chat(stream=False).stream
    assert (asked.max_tokens, asked.variables, asked.response_format) == (None, {}, None)
    assert asked.model_fields_set.isdisjoint({"temperature", "top_p", "max_tokens", "seed", "priority"})


def test_options_have_other_names():
    options = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "seed": 5,
        "stop": ["END"],
        "num_predict": 9,
    }
    asked = chat(options=options)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (0.5, 0.9, 7, 0.1)
    assert (asked.typical_p, asked.repetition_penalty) == (0.8, 1.2)
    assert (asked.presence_penalty, asked.frequency_penalty) == (0.3, 0.4)
    assert (asked.seed, asked.stop, asked.max_tokens) == (5, ["END"], 9)
    assert chat(options=dict.fromkeys(options)).model_fields_set == chat().model_fields_set


def test_whole_options_may_have_a_fraction_of_zero():
    asked = chat(options={"top_k": 40.0, "num_predict": 2.0, "seed": 1.0})
    assert repr((asked.top_k, asked.max_tokens, asked.seed)) == "(40, 2, 1)"
    with pytest.raises(BadRequest):
        chat(options={"top_k": 40.5})


@pytest.mark.parametrize("most", [-2, -1, 0])
def test_an_answer_up_to_the_end_of_the_context(most):
    assert chat(options={"num_predict": most}).max_tokens is None


def test_options_that_nobody_knows_are_named():
    ignored = Ignored()
    body(OllamaChatBody, ignored, messages=MESSAGES, options={"num_ctx": 9}, keep_alive="5m", colour=1)
    assert ignored.header() == "colour, options.num_ctx"


def test_formats():
    assert chat(format="").shape is None
    assert json.loads(chat(format="json").shape.json_schema) == {"type": "object"}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    shape = chat(format=schema).shape
    assert json.loads(shape.json_schema) == schema
    assert shape.lenient


@pytest.mark.parametrize(
    ("think", "wanted", "effort"), [(True, True, ""), (False, False, ""), ("low", True, "low")]
)
def test_thinking(think, wanted, effort):
    asked = chat(think=think)
    levels = {"reasoning_effort": effort} if effort else {}
    assert asked.variables == {"enable_thinking": wanted, "thinking": wanted} | levels


def test_calls_and_their_results_find_each_other():
    def call(name, **more):
        return {"function": {"name": name, "arguments": {"at": "❄"}}, **more}

    calls = [call("look"), call("hear"), call("look", id="mine")]
    first, second, third, fourth = said(
        [
            {"role": "assistant", "tool_calls": calls, "thinking": "Hm."},
            {"role": "tool", "content": "noise", "tool_name": "hear"},
            {"role": "tool", "content": "snow", "tool_name": "look"},
            {"role": "tool", "content": "more", "tool_call_id": "mine"},
        ]
    )
    assert [each["id"] for each in first["tool_calls"]] == ["call00001", "call00002", "mine"]
    assert first["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "❄"}'}
    assert (first["reasoning_content"], first.get("content")) == ("Hm.", None)
    results = [(each["tool_call_id"], each["content"]) for each in (second, third, fourth)]
    assert results == [("call00002", "noise"), ("call00001", "snow"), ("mine", "more")]


def test_results_without_names_are_those_of_the_calls_in_their_order():
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("look", "hear", "look")]
    called = {"role": "assistant", "tool_calls": calls}
    results = [{"role": "tool", "content": text} for text in ("snow", "noise", "ice", "more")]
    results[1]["tool_name"] = "smell"
    found = [each["tool_call_id"] for each in said([called, *results])[1:]]
    assert found == ["call00001", "call00002", "call00003", ""]


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "{}"), ({"arguments": None}, "{}"), ({"arguments": '{"at": 1}'}, '{"at": 1}')],
)
def test_arguments(given, found):
    call = {"id": None, "function": {"name": "look", **given}}
    (message,) = said([{"role": "assistant", "content": None, "thinking": None, "tool_calls": [call]}])
    (called,) = message["tool_calls"]
    assert (called["id"], called["function"]["arguments"]) == ("call00001", found)


def test_null_is_an_absent_field():
    nothing = dict.fromkeys(("thinking", "tool_calls", "tool_name", "tool_call_id", "images"))
    assert said([{**MESSAGES[0], **nothing}]) == said(MESSAGES)


def test_an_answer_goes_on_with_a_last_message_of_the_assistants():
    call = {"function": {"name": "look", "arguments": {}}}
    for last, goes_on in [
        ({"role": "assistant", "content": "Once"}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": "I look.", "tool_calls": [call]}, False),
        ({"role": "user", "content": "Once"}, False),
    ]:
        assert chat(messages=[*MESSAGES, last]).continue_final_message == goes_on


def test_a_result_without_a_call_has_no_id():
    (message,) = said([{"role": "tool", "content": "snow"}])
    assert message["tool_call_id"] == ""


def test_a_prompt_is_a_conversation():
    found = [(one.role, one.content) for one in generate(system="Be brief.").messages]
    assert found == [("system", "Be brief."), ("user", "A fox")]
    assert [one.role for one in generate().messages] == ["user"]


@pytest.mark.parametrize(
    ("kind", "fields", "loads"),
    [
        (OllamaChatBody, {"messages": []}, True),
        (OllamaChatBody, {"messages": MESSAGES}, False),
        (OllamaGenerateBody, {}, True),
        (OllamaGenerateBody, {"prompt": "A"}, False),
        (EmbedBody, {}, True),
        (EmbedBody, {"input": ""}, True),
        (EmbedBody, {"input": []}, True),
        (EmbedBody, {"input": "A"}, False),
        (EmbedBody, {"input": ["A"]}, False),
        (PromptEmbedBody, {}, True),
        (PromptEmbedBody, {"prompt": ""}, True),
        (PromptEmbedBody, {"prompt": "A"}, False),
    ],
)
def test_what_asks_for_nothing(kind, fields, loads):
    assert body(kind, **fields).loads == loads


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [
        (chat, {"messages": None}, "messages"),
        (chat, {"messages": [{"role": "robot"}]}, "messages[0].role"),
        (chat, {"messages": [{"role": "user", "images": ["x"]}]}, "messages[0].images[0]"),
        (chat, {"options": {"temperature": 101}}, "options.temperature"),
        (chat, {"options": []}, "options"),
        (chat, {"format": "xml"}, "format"),
        (chat, {"think": "hard"}, "think"),
        (chat, {"think": ["low"]}, "think"),
        (chat, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (chat, {"messages": [{"role": None}]}, "messages[0].role"),
        (generate, {"images": ["x"]}, "images[0]"),
        (generate, {"suffix": "x", "images": ["iVBORw0KGgo="]}, "images"),
        (generate, {"template": "x"}, "template"),
        (generate, {"context": [1]}, "context"),
    ],
)
def test_what_is_refused(ask, fields, param):
    with pytest.raises(BadRequest) as refused:
        ask(**fields)
    assert refused.value.param == param


LONG = "x" * 300


@pytest.mark.parametrize(
    ("message", "param", "most"),
    [
        ({"tool_name": LONG}, "tool_name", 256),
        ({"tool_call_id": LONG * 300}, "tool_call_id", 65536),
        ({"tool_calls": [{"id": LONG * 300, "function": {"name": "f"}}]}, "tool_calls[0].id", 65536),
        ({"tool_calls": [{"function": {"name": LONG}}]}, "tool_calls[0].function.name", 256),
    ],
)
def test_names_and_ids_that_are_too_long(message, param, most):
    with pytest.raises(BadRequest, match=f"at most {most} characters") as refused:
        chat(messages=[{"role": "assistant", **message}])
    assert refused.value.param == f"messages[0].{param}"
    tool = {"type": "function", "function": {"name": LONG}}
    with pytest.raises(BadRequest, match="1 to 256 characters"):
        chat(tools=[tool])


def test_ids_are_as_long_as_in_other_apis():
    """Those of Gemini carry signatures."""
    call = {"id": LONG, "function": {"name": "f", "arguments": {"a": 1}}}
    asked, answered = said(
        [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": LONG}]
    )
    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"] == LONG


def test_arguments_are_an_object_or_its_text():
    for arguments in ({"a": "❄"}, '{"a": "❄"}'):
        called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
        (message,) = said([called])
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "❄"}'
    with pytest.raises(BadRequest) as refused:
        chat(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}])
    assert refused.value.param == "messages[0].tool_calls[0].function.arguments"
