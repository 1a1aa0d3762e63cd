"""How a chat template takes conversations, found out by rendering short ones.

Templates differ in what they show of functions and calls, and nothing in them says so in one way.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

Message = dict[str, Any]

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names that templates have for the thoughts of a message."""
_TEXT = "text of the user"
_NAME = "name_of_the_function"
_VALUE = "value of the argument"
_ARGUMENTS = {"city": _VALUE}
_ID, _OTHER_ID = "abcdefghi", "bcdefghij"
"""Of calls. Mistral's templates want nine letters or digits."""
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name."}},
                "required": ["city"],
            },
        },
    }
]
_USER: Message = {"role": "user", "content": _TEXT}
_LATER_USER: Message = {"role": "user", "content": "second_question"}
_SYSTEM: Message = {"role": "system", "content": "first_advice"}
_LATER_SYSTEM: Message = {"role": "system", "content": "second_advice"}
_RAIN = "result of the call"
_RESULT: Message = {"role": "tool", "tool_call_id": _ID, "content": _RAIN}
_OTHER_RESULT: Message = {"role": "tool", "tool_call_id": _OTHER_ID, "content": "what the other one gave"}


class Way(NamedTuple):
    """How a template takes a message with calls and nothing else."""

    content: str | None = ""
    """Its content."""
    arguments_as_text: bool = False
    """Arguments are a text of JSON; otherwise an object."""
    shows_calls: bool = False
    """The template shows such calls."""


class Habits:
    """What one template does. Each habit is found out when it is first asked for."""

    def __init__(self, render: Callable[[Mapping[str, Any]], str]) -> None:
        """`render`: the template, which takes the variables of a conversation and raises what it likes."""
        self._render = render

    @cached_property
    def takes_parts(self) -> bool:
        """It shows a message's text only as a part among others, as of some models that also see."""
        return _TEXT not in self._rendered([_USER]) and _TEXT in self._rendered([in_parts(_USER)])

    @cached_property
    def takes_none(self) -> bool:
        """It takes a message whose content is none. Some print "None", and some look into it."""
        text = self._shown([_USER, {"role": "assistant", "content": None}])
        return text != "" and "None" not in text

    @cached_property
    def shows_tools(self) -> bool:
        """It shows the functions of a request."""
        return _NAME in self._shown([_USER], _TOOLS)

    @cached_property
    def refuses_tools(self) -> bool:
        """It takes no functions in the form in which clients send them, as Command R+'s of 2024."""
        return self._shown([_USER], _TOOLS) == "" != self._shown([_USER], [])

    @cached_property
    def shows_results(self) -> bool:
        """It shows the results of calls."""
        return _RAIN in self._shown([_USER, {"role": "assistant", "content": _TEXT}, _RESULT], _TOOLS)

    @cached_property
    def refuses_systems(self) -> bool:
        """It takes no system message at the beginning."""
        return self._shown([_SYSTEM, _USER]) == "" != self._shown([_USER])

    @cached_property
    def leaves_out_other_systems(self) -> bool:
        """Of several system messages it shows one."""
        return self._leaves_out([_SYSTEM, _USER, _LATER_SYSTEM, _LATER_USER])

    @cached_property
    def leaves_out_later_systems(self) -> bool:
        """It does not show a system message that is not the first message."""
        return self._leaves_out([_USER, _SYSTEM, _LATER_USER])

    @cached_property
    def calling(self) -> Way:
        """How it takes calls. Most take them in several ways; then it is the one that clients use."""
        for content in (None, ""):
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
                text = self._shown([_USER, _calling(content, arguments), _RESULT], _TOOLS)
                in_python = str(_ARGUMENTS) in text or (content is None and "None" in text)
                if _VALUE in text and not in_python:
                    return Way(content, isinstance(arguments, str), shows_calls=True)
        return Way()

    @cached_property
    def wants_an_object(self) -> bool:
        """It shows arguments that are an object, and none that are a text without JSON."""
        way = self.calling
        if way.arguments_as_text or not way.shows_calls:
            return False
        return _VALUE not in self._shown([_USER, _calling(way.content, _VALUE), _RESULT], _TOOLS)

    @cached_property
    def wants_one_call(self) -> bool:
        """It shows several calls only if each has a message of its own."""
        first, other = (self._call(id_, value) for id_, value in ((_ID, _VALUE), (_OTHER_ID, "other value")))
        both = {**first, "tool_calls": [*first["tool_calls"], *other["tool_calls"]]}
        apart = [_USER, first, _RESULT, other, _OTHER_RESULT]
        return "other value" in self._shown(apart, _TOOLS) and "other value" not in self._shown(
            [_USER, both, _RESULT, _OTHER_RESULT], _TOOLS
        )

    @cached_property
    def refuses_text_beside_thoughts(self) -> bool:
        """It takes no message with text, thoughts and calls, but one without the text."""
        call = self._call(_ID, _VALUE) | dict.fromkeys(THOUGHT_FIELDS, "A thought.")
        with_text, without = (
            self._shown([_USER, {**call, "content": content}, _RESULT], _TOOLS) for content in (_TEXT, "")
        )
        return bool(without and not with_text)

    def _call(self, id_: str, value: str) -> Message:
        """A message with a call as it takes them."""
        way, arguments = self.calling, {"city": value}
        return _calling(way.content, json.dumps(arguments) if way.arguments_as_text else arguments, id_)

    def _leaves_out(self, messages: Sequence[Message]) -> bool:
        """It takes these messages and does not show the text of each."""
        text = self._shown(messages)
        return text != "" and not all(message["content"] in text for message in messages)

    def _shown(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        return self._rendered([in_parts(one) for one in messages] if self.takes_parts else messages, tools)

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> str:
        """What the template makes of this; "" if it refuses it."""
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        try:
            return self._render(values)
        except Exception:  # whatever the template's code raises
            return ""


def in_parts(message: Mapping[str, Any]) -> Message:
    """The message with its text, if it has nothing else, as the only part of it."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**message, "content": parts}


def _calling(content: str | None, arguments: object, id_: str = _ID) -> Message:
    call = {"id": id_, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}
