"""A conversation with functions for a chat template that does not know of any: all of it is told as text.

Calls are spelled as in the format `json` (`formats.py`), so that the model sees its calls as it wrote them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]
Content = str | list[dict[str, Any]]
"""Of a message: a text, or parts, of which some are images."""

INSTRUCTION = """\
You can call functions. To do so, answer with a JSON array of calls and with nothing else, such as \
[{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}}]. The functions, with JSON Schemas of their \
parameters:
"""


def as_text(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[Message]:
    """The conversation with the roles system, user and assistant, and without calls.

    Calls become the text of the assistant, and results of calls a message of the user. The functions are
    listed in the system message if that is the first one, else in front of the first message: some templates
    know no system messages. `tools`: functions as clients send them.
    """
    told: list[Message] = []
    called: dict[str, str] = {}
    results = False
    for message in messages:
        if message["role"] == "tool":
            result = _result(message, called)
            if results:
                told[-1]["content"] = _joined("\n", told[-1]["content"], result)
            else:
                told.append({"role": "user", "content": result})
        else:
            called |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
            told.append(_said(message))
        results = message["role"] == "tool"
    return _with_list(told, tools) if tools else told


def _said(message: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in message.items() if name != "tool_calls"}
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        spelled = [{"name": each["name"], "arguments": each["arguments"]} for each in functions]
        fields["content"] = _joined("\n", message["content"], _json(spelled))
    return fields


def _result(message: Mapping[str, Any], called: Mapping[str, str]) -> Content:
    """The result of a call, with the name of the function if the conversation tells it."""
    name = called.get(message.get("tool_call_id", ""), "") or message.get("name", "")
    return _joined("", f"Result of {name}: " if name else "Result: ", message["content"])


def _with_list(messages: list[Message], tools: Sequence[Any]) -> list[Message]:
    text = INSTRUCTION + "\n".join(_json(tool["function"]) for tool in tools)
    first = messages[0]
    if first["role"] == "assistant":
        return [{"role": "system", "content": text}, *messages]
    parts = (first["content"], text) if first["role"] == "system" else (text, first["content"])
    return [{**first, "content": _joined("\n\n", *parts)}, *messages[1:]]


def _joined(between: str, *contents: Content | None) -> Content:
    """Contents of messages as one, with a text between any two that are not empty."""
    some = [each for each in contents if each]
    texts = [each for each in some if isinstance(each, str)]
    if len(texts) == len(some):
        return between.join(texts)
    parts: list[dict[str, Any]] = []
    for number, each in enumerate(some):
        if number:
            _append(parts, {"type": "text", "text": between})
        for part in [{"type": "text", "text": each}] if isinstance(each, str) else each:
            _append(parts, part)
    return parts


def _append(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Texts side by side become one part."""
    if parts and parts[-1]["type"] == part["type"] == "text":
        part = {"type": "text", "text": parts.pop()["text"] + part["text"]}
    parts.append(part)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
