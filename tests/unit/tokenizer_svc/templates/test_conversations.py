"""Conversations that some templates do not take, made into ones that they take."""

import json
from typing import Any

import pytest

from tokenizer_svc.templates.conversations import (
    MOST_DEPTH,
    described,
    in_turns,
    lost_results_told,
    one_call_each,
    systems_first,
    texts_with_calls,
    with_ids_of_results,
    with_read_calls,
    with_short_ids,
)

Chat = list[dict[str, Any]]

IMAGE = {"type": "image"}


def says(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def calls(*ids: str, content: str | None = None, **fields: Any) -> dict[str, Any]:
    return says("assistant", content, tool_calls=[{"id": id_} for id_ in ids], **fields)


def gives(id_: str, content: Any) -> dict[str, Any]:
    return says("tool", content, tool_call_id=id_)


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


A, B, C = (says("user", name) for name in "ABC")


def test_system_messages() -> None:
    chat = [says("system", "a"), says("system", "b"), A, calls("1"), gives("1", "x"), says("system", "c"), B]
    reminder = says("user", "<system-reminder>\nc\n</system-reminder>")
    expected = [says("system", "a\n\nb"), A, calls("1"), gives("1", "x"), reminder, B]
    assert systems_first(chat) == expected
    assert systems_first(chat, takes_systems=False) == [says("user", "a\n\nb"), *expected[1:]]
    assert systems_first([A, B]) == [A, B]
    shown = says("system", [IMAGE, text("b")])
    assert systems_first([says("system", "a"), shown]) == [says("system", [text("a\n\n"), IMAGE, text("b")])]
    marked = [text("<system-reminder>\n"), IMAGE, text("b\n</system-reminder>")]
    assert systems_first([A, shown]) == [A, says("user", marked)]


@pytest.mark.parametrize(
    ("chat", "ids"),
    [
        ([calls("1", "2"), says("tool", "x"), says("tool", "y")], ["1", "2"]),
        ([calls("1", "2"), says("tool", "x"), gives("1", "y")], ["2", "1"]),
        ([calls("1"), says("tool", "x"), calls("2"), says("tool", "y")], ["1", "2"]),
        ([calls("1", "2"), says("tool", "x"), A], [None]),
        ([calls("1"), says("tool", "x"), says("tool", "y")], [None, None]),
        ([calls(""), says("tool", "x")], [None]),
        ([says("tool", "x"), A], [None]),
    ],
)
def test_results_that_do_not_name_their_calls(chat: Chat, ids: list[str | None]) -> None:
    found = with_ids_of_results(chat)
    assert [message.get("tool_call_id") for message in found if message["role"] == "tool"] == ids


def nested(times: int) -> str:
    return '{"a":' * times + "1" + "}" * times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "é", "b": [1]}', {"a": "é", "b": [1]}),
        ("", {}),
        (nested(MOST_DEPTH - 1), json.loads(nested(MOST_DEPTH - 1))),
        (nested(MOST_DEPTH), None),
        (nested(100_000), None),
        ("{oh", None),
        ("[1]", None),
        ("5", None),
    ],
)
def test_arguments_are_read_where_they_are_an_object(text: str, expected: object) -> None:
    """`expected`: None: they stay a text."""
    function = {"name": "f", "arguments": text}
    (read,) = with_read_calls([says("assistant", None, tool_calls=[{"id": "1", "function": function}])])
    wanted = text if expected is None else expected
    assert read["tool_calls"] == [{"id": "1", "function": {"name": "f", "arguments": wanted}}]


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([A, says("assistant", "a"), B], None),
        ([says("system", "s"), A, calls("1", "2"), gives("1", "x"), gives("2", "y")], None),
        ([calls("1"), calls("2")], [says("user", ""), calls("1"), calls("2")]),
        ([A, calls("1"), says("assistant", "a")], None),
        ([A, says("user", ""), B, C], [says("user", "A\n\nB\n\nC")]),
        ([A, says("user", [IMAGE])], [says("user", [text("A\n\n"), IMAGE])]),
        ([says("assistant", "a"), A], [says("user", ""), says("assistant", "a"), A]),
        (
            [says("system", "s"), says("assistant", "a"), A],
            [says("system", "s"), says("user", ""), says("assistant", "a"), A],
        ),
        (
            [A, calls("1"), gives("1", "x"), gives("2", "y"), B, C],
            [A, calls("1"), gives("1", "x"), gives("2", "y\n\nB\n\nC")],
        ),
        ([A, calls("1"), gives("1", ""), B], [A, calls("1"), gives("1", "B")]),
        ([A, calls("1"), gives("1", "x"), says("user", [IMAGE])], None),
        (
            [A, says("assistant", "a", thinking="t"), calls("1", content="b", thinking="u"), gives("1", "x")],
            [A, calls("1", content="a\n\nb", thinking="t\n\nu"), gives("1", "x")],
        ),
        ([A, says("assistant", "a"), calls("1")], [A, calls("1", content="a")]),
    ],
)
def test_turns(chat: Chat, expected: Chat | None) -> None:
    assert in_turns(chat) == (chat if expected is None else expected)


def test_calls_one_by_one() -> None:
    """Results keep their order: their images come in that of the conversation."""
    both = calls("1", "2", "3", content="I look.", thinking="Hm.")
    chat = [A, both, gives("2", "y"), gives("1", "x"), B]
    second = calls("2", content="I look.", thinking="Hm.")
    expected = [A, second, gives("2", "y"), calls("1"), gives("1", "x"), calls("3"), B]
    assert one_call_each(chat) == expected
    assert one_call_each(expected) == expected


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([gives("1", "x"), A, calls("1", "2")], [gives("1", "x"), A, calls("1"), calls("2")]),
        ([calls("1", "2"), gives("?", "x")], [calls("1"), gives("?", "x"), calls("2")]),
        (
            [calls("1", "1"), gives("1", "x"), gives("1", "y"), gives("1", "z")],
            [calls("1"), gives("1", "x"), calls("1"), gives("1", "y"), gives("1", "z")],
        ),
        (
            [calls("1", "2"), calls("1", "2"), gives("2", "y"), A],
            [calls("1"), calls("2"), calls("2"), gives("2", "y"), calls("1"), A],
        ),
    ],
)
def test_calls_and_results_that_do_not_fit(chat: Chat, expected: Chat) -> None:
    assert one_call_each(chat) == expected


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        ([A, calls("1"), says("assistant", "a"), B], None),
        ([A, says("assistant", "a"), gives("1", "x")], None),
        ([says("assistant", "a"), gives("1", "x"), says("assistant", "b"), gives("2", "y")], None),
        ([A, calls("1"), B, says("assistant", "a"), gives("1", "x")], None),
        (
            [
                A,
                calls("1", "2"),
                says("assistant", "a"),
                says("assistant", "b"),
                gives("1", "x"),
                gives("2", "y"),
            ],
            [A, calls("1", "2", content="a\n\nb"), gives("1", "x"), gives("2", "y")],
        ),
        (
            [calls("1", thinking="t"), says("assistant", "a", thinking="u"), gives("1", "x"), calls("2")],
            [calls("1", content="a", thinking="t\n\nu"), gives("1", "x"), calls("2")],
        ),
    ],
)
def test_texts_between_calls_and_results(chat: Chat, expected: Chat | None) -> None:
    assert texts_with_calls(chat) == (chat if expected is None else expected)


def test_results_whose_calls_are_not_there() -> None:
    chat = [gives("1", "x"), A, calls("2"), gives("2", "y"), gives("3", [IMAGE]), says("tool", "z")]
    shown = says("user", [text("Result: "), IMAGE])
    assert lost_results_told(chat) == [says("user", "Result: x"), *chat[1:4], shown, chat[5]]
    assert lost_results_told([says("tool", "z")]) == [says("user", "Result: z")]


def test_ids_of_other_servers() -> None:
    chat = [A, calls("call_1", "abcdefgh9"), gives("abcdefgh9", "y"), gives("call_1", "x")]
    short = with_short_ids(chat)
    id_ = short[3]["tool_call_id"]
    assert len(id_) == 9
    assert id_.isalnum()
    assert short == [A, calls(id_, "abcdefgh9"), gives("abcdefgh9", "y"), gives(id_, "x")]
    assert with_short_ids([calls("call_2")]) != with_short_ids([calls("call_1")]) == [calls(id_)]


def test_functions_with_all_that_templates_look_into() -> None:
    properties = {"unit": {"enum": ["C", 1], "default": 1}, "at": {"default": "now"}, "any": True}
    tools = [
        {"type": "function", "function": {"name": "f", "description": None}},
        {
            "type": "function",
            "function": {"name": "g", "description": "G.", "parameters": {"properties": properties}},
        },
        {"type": "other"},
    ]
    f, g, other = described(tools)
    assert f["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }
    kept = {"unit": {"enum": ["C", 1]}, "at": {"default": "now"}, "any": True}
    assert g == {"type": "function", "function": {**tools[1]["function"], "parameters": {"properties": kept}}}
    assert other == tools[2]
    assert described([f, g]) == [f, g]
