"""Functions, calls and results as text, for chat templates that know none of them."""

import json

from tokenizer_svc.templates.tools_as_text import Spelling
from tokenizer_svc.templates.tools_as_text import as_text as told_as_text

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "clock"}},
]
JSON = Spelling("[", '{"name": "$name", "arguments": $arguments}', ", ", "]", foreign=True)
INSTRUCTION = JSON.instruction
LISTED = INSTRUCTION + '{"name": "weather", "parameters": {"type": "object"}}\n{"name": "clock"}'
USER = {"role": "user", "content": "Is it late?"}


def as_text(messages, tools):
    return told_as_text(messages, tools, JSON)


def call(name, arguments, id=""):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_what_has_no_functions_stays():
    turn = [{"role": "system", "content": "Be kind."}, USER, {"role": "assistant", "content": "No."}]
    assert as_text(turn, []) == turn


def test_functions_follow_the_system_message():
    system = {"role": "system", "content": "Be kind."}
    assert as_text([system, USER], TOOLS) == [{"role": "system", "content": f"Be kind.\n\n{LISTED}"}, USER]
    assert as_text([{**system, "content": ""}, USER], TOOLS)[0]["content"] == LISTED


def test_without_a_system_message_functions_come_before_the_question():
    assert as_text([USER, USER], TOOLS) == [{"role": "user", "content": f"{LISTED}\n\nIs it late?"}, USER]


def test_an_assistant_that_begins_gets_a_system_message_before_it():
    first = {"role": "assistant", "content": "Hello."}
    assert as_text([first], TOOLS) == [{"role": "system", "content": LISTED}, first]


def test_the_instruction_shows_the_format_of_calls():
    _, example, _ = INSTRUCTION.split("\n", 2)
    assert [each["name"] for each in json.loads(example)] == ["FUNCTION", "ANOTHER_FUNCTION"]


def test_calls_are_spelled_as_the_model_spells_them():
    calls = [call("weather", {"city": "Köln"}), call("clock", "not JSON")]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    (told,) = as_text([asked], [])
    spelled = (
        '[{"name": "weather", "arguments": {"city": "Köln"}}, {"name": "clock", "arguments": "not JSON"}]'
    )
    assert told == {"role": "assistant", "content": spelled}
    assert as_text([{**asked, "content": "Wait."}], [])[0]["content"] == f"Wait.\n{spelled}"


def test_results_of_one_turn_are_one_message_of_the_user():
    """Many templates refuse two messages of the user in a row."""
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("weather", {}, "a"), call("clock", {}, "b")],
    }
    results = [
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "content": "?"},
        {"role": "tool", "name": "radio", "content": "music"},
    ]
    told = as_text([USER, asked, *results, {"role": "assistant", "content": "Yes."}], [])
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant"]
    assert told[2]["content"] == (
        "Result of clock: noon\nResult of weather: rain\nResult: ?\nResult of radio: music"
    )


def test_a_user_after_results_is_a_message_of_its_own():
    result = {"role": "tool", "content": "rain"}
    assert as_text([result, USER, result], []) == [
        {"role": "user", "content": "Result: rain"},
        USER,
        {"role": "user", "content": "Result: rain"},
    ]


def test_images_stay_in_their_places():
    image = {"type": "image"}
    seen = {"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}
    told = as_text([seen], TOOLS)
    assert told[0]["content"] == [
        {"type": "text", "text": f"{LISTED}\n\n"},
        image,
        {"type": "text", "text": "What is it?"},
    ]
    results = [
        {"role": "tool", "name": "camera", "content": [{"type": "text", "text": "See: "}, image]},
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": [image]},
    ]
    asked = {"role": "assistant", "content": [image], "tool_calls": [call("clock", {}, "x")]}
    told = as_text([asked, *results], [])
    assert told[0]["content"] == [
        image,
        {"type": "text", "text": '\n[{"name": "clock", "arguments": {}}]'},
    ]
    assert told[1]["content"] == [
        {"type": "text", "text": "Result of camera: See: "},
        image,
        {"type": "text", "text": "\nResult: rain\nResult: "},
        image,
    ]
    assert seen["content"] == [image, {"type": "text", "text": "What is it?"}]


def test_the_conversation_itself_does_not_change():
    turn = [{**USER}, {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}]
    before = json.dumps(turn)
    as_text(turn, TOOLS)
    assert json.dumps(turn) == before
