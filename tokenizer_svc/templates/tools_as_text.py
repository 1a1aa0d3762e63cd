"""A conversation with functions for a chat template that does not know of any: all of it is told as text.

Calls are spelled in the model's format (`formats/call_table.py`), so that it sees its calls as it wrote them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Content = str | list[dict[str, Any]]
"""Of a message: a text, or parts, of which some are images."""


@dataclass(frozen=True)
class Spelling:
    """How a model spells calls, with fields of `CallFormat` in `formats/entry.py`."""

    first: str
    call: str
    between: str
    last: str
    python: bool = False
    """Arguments are those of Python; otherwise JSON."""
    foreign: bool = False
    """The model may not have learned to call functions: results are told as text, too."""

    def of(self, calls: Iterable[tuple[str, object]]) -> str:
        """The text of calls: of each its name and its arguments."""
        spelled = (
            self.call.replace("$number", str(number))
            .replace("$id", f"call{number:06}")
            .replace("$name", name)
            .replace("$arguments", self._written(given))
            for number, (name, given) in enumerate(calls)
        )
        return self.first.replace("$space", " ") + self.between.join(spelled) + self.last

    def _written(self, arguments: object) -> str:
        if self.python and isinstance(arguments, dict):
            return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return _json(arguments)

    @property
    def instruction(self) -> str:
        """What a model is told of functions in front of their list."""
        example = self.of((name, {"PARAMETER": "VALUE"}) for name in ("FUNCTION", "ANOTHER_FUNCTION"))
        return (
            "You can call functions. To do so, answer with one or more calls in this form and nothing else:\n"
            f"{example}\nThe functions, with JSON Schemas of their parameters:\n"
        )


def as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], spelling: Spelling, results: bool = True
) -> list[Message]:
    """The conversation without calls, which become the text of the assistant.

    `tools`: functions as clients send them; see `with_list`. `results`: those of calls become messages of the
    user.
    """
    told: list[Message] = []
    called: dict[str, str] = {}
    after_result = False
    for message in messages:
        if message["role"] == "tool" and results:
            result = result_text(message, called)
            if after_result:
                told[-1]["content"] = joined("\n", told[-1]["content"], result)
            else:
                told.append({"role": "user", "content": result})
        else:
            called |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
            told.append(_said(message, spelling))
        after_result = message["role"] == "tool"
    return with_list(told, tools, spelling)


def with_list(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], spelling: Spelling
) -> list[Message]:
    """The conversation with a list of functions, if there are any.

    It is in the system message if that is the first one, else in front of the first message: some templates
    know no system messages.
    """
    if not tools:
        return [dict(message) for message in messages]
    text = spelling.instruction + "\n".join(_json(tool["function"]) for tool in tools)
    first = messages[0]
    if first["role"] == "assistant":
        return [{"role": "system", "content": text}, *map(dict, messages)]
    parts = (first["content"], text) if first["role"] == "system" else (text, first["content"])
    return [{**first, "content": joined("\n\n", *parts)}, *map(dict, messages[1:])]


def joined(between: str, *contents: Content | None) -> Content:
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


def result_text(message: Mapping[str, Any], called: Mapping[str, str]) -> Content:
    """The result of a call, with the name of the function if the conversation tells it."""
    name = called.get(message.get("tool_call_id", ""), "") or message.get("name", "")
    return joined("", f"Result of {name}: " if name else "Result: ", message["content"])


def _said(message: Mapping[str, Any], spelling: Spelling) -> Message:
    fields = {name: value for name, value in message.items() if name != "tool_calls"}
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        spelled = spelling.of((each["name"], each["arguments"]) for each in functions)
        fields["content"] = joined("\n", message["content"], spelled)
    return fields


def _append(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Texts side by side become one part."""
    if parts and parts[-1]["type"] == part["type"] == "text":
        part = {"type": "text", "text": parts.pop()["text"] + part["text"]}
    parts.append(part)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
