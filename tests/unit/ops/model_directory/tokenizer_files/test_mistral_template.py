"""Conversations as mistral-common spells them; of version 1.13 all tokens of these were the same."""

from typing import Any

import pytest

from ops.model_directory.tokenizer_files.mistral_template import THOUGHT_MARKS, template_of
from tokenizer_svc.templates.template import ChatTemplate, Rendering

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
VERSIONS = ("v7", "v11", "v13")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Ä", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "strict": True, "parameters": {}}},
]
LISTED = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "look", "description": "Ä", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}}}}, {"type": "function", "function": '
    '{"name": "now", "description": "", "parameters": {}}}][/AVAILABLE_TOOLS]'
)
IMAGE = {"type": "image"}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: str | None, *calls: dict[str, Any], thought: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        found["tool_calls"] = list(calls)
    return found | ({"reasoning_content": thought, "reasoning": thought} if thought else {})


def call(id_: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id_: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


LOOK, NOW = call("abcdefg01", "look", {"city": 'Zü"r'}), call("abcdefg02", "now", {})


def rendered(version: str, chat: list[dict[str, Any]], tools: Any = (), thinks: bool = False) -> str:
    source = template_of(version, THOUGHT_MARKS if thinks else ())
    assert source is not None
    return ChatTemplate(source, TOKENS).render(chat, tools=tools)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([user("Hi {{ x }}")], "[INST]Hi {{ x }}[/INST]"),
        ([system(" s\n"), user("a\n")], "[SYSTEM_PROMPT] s\n[/SYSTEM_PROMPT][INST]a\n[/INST]"),
        (
            [user("a"), system("one"), system("two"), user("b")],
            "[INST]a[/INST][SYSTEM_PROMPT]one[/SYSTEM_PROMPT][SYSTEM_PROMPT]two[/SYSTEM_PROMPT][INST]b[/INST]",
        ),
        ([user("a"), assistant("\nb \n "), user("c")], "[INST]a[/INST]\nb \n</s>[INST]c[/INST]"),
        (
            [user("a"), user(""), user("b"), assistant("x "), assistant("y "), user("c")],
            "[INST]a\n\nb[/INST]x \n\ny</s>[INST]c[/INST]",
        ),
        ([user(""), assistant("x"), user("")], "[INST][/INST]x</s>[INST][/INST]"),
        ([user([IMAGE, text("a"), IMAGE])], "[INST][IMG]a[IMG][/INST]"),
        ([user([text("a"), IMAGE])], "[INST][IMG]a[/INST]"),
        ([user("a"), user([IMAGE])], "[INST][IMG]a[/INST]"),
        ([user([text("a"), IMAGE]), user("b")], "[INST]a[IMG]b[/INST]"),
        ([user([IMAGE, text("a")]), user("b")], "[INST][IMG]a\n\nb[/INST]"),
    ],
)
def test_texts_and_images(version: str, chat: list[dict[str, Any]], expected: str) -> None:
    assert rendered(version, chat) == "<s>" + expected


CALLS = {
    "v7": '[TOOL_CALLS][{"name": "look", "arguments": {"city": "Zü\\"r"}, "id": "abcdefg01"}, '
    '{"name": "now", "arguments": {}, "id": "abcdefg02"}]',
    "v11": '[TOOL_CALLS]look[CALL_ID]abcdefg01[ARGS]{"city": "Zü\\"r"}'
    "[TOOL_CALLS]now[CALL_ID]abcdefg02[ARGS]{}",
    "v13": '[TOOL_CALLS]look[ARGS]{"city": "Zü\\"r"}[TOOL_CALLS]now[ARGS]{}',
}
RESULTS = {
    "v7": "[TOOL_RESULTS]abcdefg02[TOOL_CONTENT]two[/TOOL_RESULTS]"
    "[TOOL_RESULTS]abcdefg01[TOOL_CONTENT]one[/TOOL_RESULTS]",
    "v11": "[TOOL_RESULTS]abcdefg01[TOOL_CONTENT]one[/TOOL_RESULTS]"
    "[TOOL_RESULTS]abcdefg02[TOOL_CONTENT]two[/TOOL_RESULTS]",
    "v13": "[TOOL_RESULTS]one[/TOOL_RESULTS][TOOL_RESULTS]two[/TOOL_RESULTS]",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_and_results(version: str) -> None:
    """The results come in another order than the calls."""
    results = [result("abcdefg02", "two"), result("abcdefg01", "one")]
    chat = [user("q"), assistant("I "), assistant("see ", LOOK, NOW), *results, assistant("so"), user("a")]
    first, last = (LISTED, "") if version == "v13" else ("", LISTED)
    assert rendered(version, chat, TOOLS) == (
        f"<s>{first}[INST]q[/INST]I \n\nsee{CALLS[version]}</s>{RESULTS[version]}so</s>{last}[INST]a[/INST]"
    )
    alone = [user("q"), assistant(None, LOOK, NOW), *results]
    expected = f"<s>{LISTED}[INST]q[/INST]{CALLS[version]}</s>{RESULTS[version]}"
    assert rendered(version, alone, TOOLS) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_functions_stand_before_a_question_of_several_messages(version: str) -> None:
    chat = [user("a"), user("b"), assistant("c"), user("d"), user("e")]
    first, last = (LISTED, "") if version == "v13" else ("", LISTED)
    expected = f"<s>{first}[INST]a\n\nb[/INST]c</s>{last}[INST]d\n\ne[/INST]"
    assert rendered(version, chat, TOOLS) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_results_of_calls_that_nobody_made_are_not_left_out(version: str) -> None:
    chat = [user("q"), assistant("", LOOK), result("zzzzzzzzz", "other"), result("abcdefg01", "one")]
    assert rendered(version, chat).count("other[/TOOL_RESULTS]") == 1
    assert rendered(version, chat).count("one[/TOOL_RESULTS]") == 1


def test_thoughts() -> None:
    chat = [
        *(user("q"), assistant("", LOOK, thought="hm\n"), result("abcdefg01", "5")),
        *(assistant(" so ", thought=" yes "), user("x"), assistant(None, thought="only"), user("y")),
    ]
    spelled = '[TOOL_CALLS]look[ARGS]{"city": "Zü\\"r"}</s>[TOOL_RESULTS]5[/TOOL_RESULTS]'
    assert rendered("v13", chat, thinks=True) == (
        f"<s>[INST]q[/INST][THINK]hm\n[/THINK]{spelled}[THINK] yes [/THINK] so </s>"
        "[INST]x[/INST][THINK]only[/THINK]</s>[INST]y[/INST]"
    )
    assert "hm" not in rendered("v13", chat)
    assert "hm" not in rendered("v11", chat, thinks=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("The answer is ", "The answer is"),
        ("```json\n", "```json\n"),
        ("A list:\n\n ", "A list:\n\n"),
        ("\t", "\t"),
    ],
)
def test_an_answer_goes_on(version: str, content: str, expected: str) -> None:
    source = template_of(version, ())
    assert source is not None
    goes_on = Rendering(add_generation_prompt=False, continue_final_message=True)
    chat = [user("q"), assistant(content)]
    text = ChatTemplate(source, TOKENS).render(chat, rendering=goes_on)
    assert text == f"<s>[INST]q[/INST]{expected}"


def test_arguments_that_are_no_object_are_a_text() -> None:
    chat = [user("q"), assistant("", call("abcdefg01", "look", 'Zü"r'))]
    assert rendered("v13", chat) == '<s>[INST]q[/INST][TOOL_CALLS]look[ARGS]"Zü\\"r"</s>'


def test_other_versions_have_none() -> None:
    assert template_of("v3", THOUGHT_MARKS) is None
    assert template_of("v99", THOUGHT_MARKS) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_results_without_ids_are_those_of_the_calls_before(version: str) -> None:
    chat = [user("a"), assistant(None, LOOK, NOW), result("abcdefg01", "x"), result("abcdefg02", "y")]
    bare = [{key: message[key] for key in message if key != "tool_call_id"} for message in chat]
    assert rendered(version, bare) == rendered(version, chat)
