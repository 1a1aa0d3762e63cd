"""Which tools a model may or must call: `tool_choice`, and what it makes of an answer's calls."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.api.messages.tools import Json, grammar_of, name_of
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import CallShape

_PLAIN = ["none", "auto", "required"]
PLAIN: list[Json] = [
    {"enum": _PLAIN},
    {"type": "object", "properties": {"type": {"enum": _PLAIN}}, "required": ["type"]},
]
"""The JSON Schemas of a choice that names nothing."""


def plain(choice: object) -> object:
    """A choice that names nothing as a text, which Cursor sends as an object."""
    match choice:
        case {"type": "none" | "auto" | "required" as kind}:
            return kind
    return choice


def _choice(value: object) -> object:
    """What `tool_choice` may be."""
    value = plain(value)
    if value in ("none", "auto", "required") or named(value):
        return value
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        if allowed_names(value) is not None and _mode(value) in ("auto", "required"):
            return value
        message = "Input should have 'allowed_tools' with a 'mode' and a list of 'tools'"
        raise PydanticCustomError("invalid_choice", message)
    message = (
        "Input should be 'none', 'auto', 'required', or an object with a function's name or allowed tools"
    )
    raise PydanticCustomError("invalid_choice", message)


def named(choice: object) -> str:
    """Name of the function that a `tool_choice` demands; "" if it names none."""
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "custom"):
        return ""
    function = choice.get(choice["type"], choice)
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def demanded(choice: object) -> bool:
    """Whether a `tool_choice` demands a call."""
    return choice == "required" or bool(named(choice)) or _mode(choice) == "required"


def _mode(choice: object) -> object:
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    return allowed.get("mode", "auto") if isinstance(allowed, dict) else None


def allowed_names(choice: object) -> set[str] | None:
    """Names of the functions that a `tool_choice` of type allowed_tools allows; None for other types."""
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list):
        return None
    functions = [tool.get("function", tool.get("custom", tool)) for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return {name for name in names if isinstance(name, str)} if len(names) == len(tools) else None


def call_shape(tools: Sequence[Json], choice: object, parallel: bool) -> CallShape | None:
    """Rules for the calls of an answer; None if any call is allowed. `tools`: the tools of the request.

    Raises `BadRequest` if a call is demanded that cannot be made.
    """
    name = named(choice)
    inputs = {name_of(tool): grammar for tool in tools if (grammar := grammar_of(tool)) is not None}
    if not demanded(choice):
        strict = inputs or any(tool[tool["type"]].get("strict") is True for tool in tools)
        return CallShape(single=not parallel, inputs=inputs) if strict else None
    if not tools:
        raise BadRequest(
            "'tool_choice' demands a call, and there are no tools.", param="tool_choice", code="invalid_value"
        )
    if name and all(name_of(tool) != name for tool in tools):
        message = f"'tool_choice': there is no function {name!r} among the tools."
        raise BadRequest(message, param="tool_choice", code="invalid_value")
    return CallShape(required=True, single=bool(name) or not parallel, function=name, inputs=inputs)


_NAME = {"type": "string", "minLength": 1}
_FLAT_NAME = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": _NAME},
    "required": ["type", "name"],
}


def _named(kind: str) -> Json:
    name = {"type": "object", "properties": {"name": _NAME}, "required": ["name"]}
    return {"type": "object", "properties": {"type": {"const": kind}, kind: name}, "required": ["type", kind]}


ToolChoice = Annotated[
    str | Json,
    BeforeValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                *PLAIN,
                *(_named(kind) for kind in ("function", "custom")),
                _FLAT_NAME,
                {
                    "type": "object",
                    "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": {"type": "object"}},
                    "required": ["type", "allowed_tools"],
                },
            ]
        }
    ),
]
