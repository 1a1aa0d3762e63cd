"""Conversations for chat templates that do not take them as they are.

Many templates take a system message at the beginning alone, or none. Some want user and assistant to take
turns, and some know one call a message. Agents send several messages of a role in a row, several calls in
a message, and texts behind calls and results. They cut long conversations, and go on with those of other
servers.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from tokenizer_svc.templates.habits import THOUGHT_FIELDS
from tokenizer_svc.templates.tools_as_text import Message, joined, result_text

MOST_DEPTH = 64
"""Of values within the arguments of a call: templates cannot write all that can be read."""
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def with_read_calls(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Arguments of calls that are JSON objects in a text become objects: most templates write them as JSON,
    and a string in quotes. Other texts, which a model may have made, stay what they are."""
    return [
        {**message, "tool_calls": [_read_call(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def with_ids_of_results(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Results that do not name their calls are those of the calls before them, in order, if there are as many
    as calls without a result."""
    found = [dict(message) for message in messages]
    for place, message in enumerate(found):
        ids = [call.get("id") for call in message.get("tool_calls", ())]
        if not ids:
            continue
        results = list(takewhile(lambda each: each["role"] == "tool", found[place + 1 :]))
        unnamed = [result for result in results if "tool_call_id" not in result]
        named = {result.get("tool_call_id") for result in results}
        left = [id_ for id_ in ids if id_ and id_ not in named]
        if len(unnamed) == len(left):
            for result, id_ in zip(unnamed, left, strict=True):
                result["tool_call_id"] = id_
    return found


def systems_first(messages: Sequence[Mapping[str, Any]], takes_systems: bool = True) -> list[Message]:
    """The first system messages become one, and later ones the user's, marked as Claude Code marks such.

    `takes_systems`: otherwise the first ones become the user's, too.
    """
    first = list(takewhile(lambda message: message["role"] == "system", messages))
    found: list[Message] = []
    if first:
        content = joined("\n\n", *(message["content"] for message in first))
        found.append({"role": "system" if takes_systems else "user", "content": content})
    for message in messages[len(first) :]:
        if message["role"] == "system":
            content = joined("\n", "<system-reminder>", message["content"], "</system-reminder>")
            message = {"role": "user", "content": content}
        found.append(dict(message))
    return found


def in_turns(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The user begins, and messages of user or assistant in a row become one.

    What the user says behind a result becomes part of it.
    """
    found: list[Message] = []
    for message in messages:
        if message["role"] == "assistant" and (not found or found[-1]["role"] == "system"):
            found.append({"role": "user", "content": ""})
        if found and _goes_on(found[-1], message):
            found[-1] = _one(found[-1], message)
        else:
            found.append(dict(message))
    return found


def one_call_each(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """A message for each call, with its result behind it. Results may have images: they keep their order."""
    found: list[Message] = []
    said: Mapping[str, Any] = {}
    waiting: list[Mapping[str, Any]] = []

    def tell(call: Mapping[str, Any]) -> None:
        nonlocal said
        waiting.remove(call)
        found.append({**said, "tool_calls": [call]})
        said = {"role": "assistant", "content": None}

    for message in messages:
        if message["role"] != "tool":
            while waiting:
                tell(waiting[0])
        elif waiting:
            id_ = message.get("tool_call_id")
            tell(next((call for call in waiting if call["id"] == id_), waiting[0]))
        calls = message.get("tool_calls", ())
        if len(calls) > 1:
            said, waiting = message, list(calls)
        else:
            found.append(dict(message))
    while waiting:
        tell(waiting[0])
    return found


def texts_with_calls(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """What the assistant says between calls and their results is part of the message with the calls."""
    found: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            place = len(found) - 1
            while place > 0 and found[place]["role"] == "assistant" and "tool_calls" not in found[place]:
                place -= 1
            if found and "tool_calls" in found[place]:
                found[place:] = [reduce(_one, found[place:])]
        found.append(dict(message))
    return found


def lost_results_told(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Results of calls that are not in the conversation are told as texts of the user."""
    found: list[Message] = []
    called: set[str] = set()
    for message in messages:
        called |= {call["id"] for call in message.get("tool_calls", ())}
        has_call = message["tool_call_id"] in called if "tool_call_id" in message else bool(called)
        if message["role"] == "tool" and not has_call:
            message = {"role": "user", "content": result_text(message, {})}
        found.append(dict(message))
    return found


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Ids of calls have nine letters or digits. Others become nine digits of their hash."""

    def short(id_: str) -> str:
        return id_ if _SHORT_ID.fullmatch(id_) else blake2b(id_.encode(), digest_size=5).hexdigest()[:9]

    found: list[Message] = []
    for message in messages:
        fields = dict(message)
        if "tool_call_id" in message:
            fields["tool_call_id"] = short(message["tool_call_id"])
        if "tool_calls" in message:
            fields["tool_calls"] = [{**call, "id": short(call["id"])} for call in message["tool_calls"]]
        found.append(fields)
    return found


def described(tools: Sequence[Any]) -> list[Any]:
    """Functions that have a description and parameters. Of arguments, defaults that are no text are left out.

    As the templates of gpt-oss, Apertus and Hermes want them.
    """
    return [
        {**tool, "function": _described(tool["function"])} if "function" in tool else tool for tool in tools
    ]


def _read_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    if not isinstance(text := function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict) or _is_deep(arguments):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _is_deep(value: Any) -> bool:
    """Whether values are in each other more than `MOST_DEPTH` times."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [each for one in level for each in _within(one)]
    return bool(level)


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _described(function: Mapping[str, Any]) -> dict[str, Any]:
    given = function.get("parameters")
    parameters: Mapping[str, Any] = given if isinstance(given, dict) else {"type": "object"}
    listed = parameters.get("properties")
    properties = {
        name: {key: value for key, value in schema.items() if key != "default" or isinstance(value, str)}
        if isinstance(schema, dict)
        else schema
        for name, schema in (listed.items() if isinstance(listed, dict) else ())
    }
    return {
        **function,
        "description": function.get("description") or "",
        "parameters": {**parameters, "properties": properties},
    }


def _goes_on(before: Message, message: Mapping[str, Any]) -> bool:
    """Whether a message becomes part of the one before."""
    match before["role"], message["role"]:
        case "user", "user":
            return True
        case "tool", "user":
            return isinstance(message["content"], str)  # templates show no images there
        case "assistant", "assistant":
            return "tool_calls" not in before
    return False


def _one(before: Message, message: Mapping[str, Any]) -> Message:
    both = [name for name in ("content", *THOUGHT_FIELDS) if name in before and name in message]
    return {**message, **before, **{name: joined("\n\n", before[name], message[name]) for name in both}}
