"""Functions that a model may call: how clients offer them, and how they send calls and results back."""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.api.fields import bounded
from gateway.api.ignored import Ignored
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import CallShape

MAX_TOOLS = 1024
MAX_TOOL_DEPTH = 64
MAX_TOOL_VALUES = 2**16
"""Values in the schemas of all functions."""
MAX_CALLS = 1024
"""Calls in one message."""
MAX_NAME = 256

Json = dict[str, Any]


class _Lenient(BaseModel):
    """Other fields are those of other servers, and clients send them back."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


def _arguments(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


class CalledFunction(_Lenient):
    """A function and its arguments: a JSON object as text, or the object itself."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: Annotated[
        str,
        BeforeValidator(_arguments),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
    ] = ""


class ToolCall(_Lenient):
    """A call that the model has made."""

    id: str = Field("", max_length=MAX_NAME)
    type: Literal["function"] = "function"
    function: CalledFunction


def functions(value: object, info: ValidationInfo, kinds: Collection[str | None]) -> object:
    """A list of tools without those that are no functions: the `type` of a function is one of `kinds`.

    Others, such as `web_search`, run on the servers of who made them, and agents offer them to every server.
    The model does not see them. They are noted as ignored; where no fields are, this raises `BadRequest`.
    """
    bounded(value, MAX_TOOL_DEPTH, MAX_TOOL_VALUES)
    if not isinstance(value, list):
        return value
    kept = []
    for number, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind in kinds or not isinstance(kind, str):
            kept.append(tool)
        elif isinstance(info.context, Ignored):
            info.context.note(f"tools[{number}]")
        else:
            param = f"tools[{number}].type"
            message = f"'{param}': only functions are supported."
            raise BadRequest(message, param=param, code="unsupported_parameter")
    return kept


def _tools(value: object, info: ValidationInfo) -> object:
    kept = functions(value, info, ("function",))
    for number, tool in enumerate(kept if isinstance(kept, list) else ()):
        _check_tool(tool, f"tools[{number}]")
    return kept


def _check_tool(tool: object, param: str) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise BadRequest(f"'{param}' must be an object with a 'type'.", param=param, code="invalid_type")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        message = f"'{param}.function' must be an object with a 'name'."
        raise BadRequest(message, param=f"{param}.function", code="invalid_value")
    assert isinstance(function, dict)
    if not isinstance(function.get("parameters") or {}, dict):
        message = f"'{param}.function.parameters' must be a JSON schema."
        raise BadRequest(message, param=f"{param}.function.parameters", code="invalid_type")
    if not isinstance(function.get("strict"), bool | None):
        message = f"'{param}.function.strict' must be true or false."
        raise BadRequest(message, param=f"{param}.function.strict", code="invalid_type")


def _choice(value: object) -> object:
    """What `tool_choice` may be."""
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
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return ""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def demanded(choice: object) -> bool:
    """Whether a `tool_choice` demands a call."""
    return choice == "required" or bool(named(choice)) or _mode(choice) == "required"


def _mode(choice: object) -> object:
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    return allowed.get("mode", "auto") if isinstance(allowed, dict) else None


def allowed_names(choice: object) -> set[str] | None:
    """Names of the functions that a `tool_choice` of type allowed_tools allows; None if it is no such."""
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(tools, list):
        return None
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return {name for name in names if isinstance(name, str)} if len(names) == len(tools) else None


def call_shape(tools: Sequence[Json], choice: object, parallel: bool) -> CallShape | None:
    """Which calls an answer may have; None if any text will do. `tools`: the functions that are offered.

    Raises `BadRequest` if a call is demanded that cannot be made.
    """
    name = named(choice)
    if not demanded(choice):
        strict = any(tool["function"].get("strict") is True for tool in tools)
        return CallShape(single=not parallel) if strict else None
    if not tools:
        raise BadRequest(
            "'tool_choice' demands a call, and there are no tools.", param="tool_choice", code="invalid_value"
        )
    if name and all(tool["function"]["name"] != name for tool in tools):
        message = f"'tool_choice': there is no function {name!r} among the tools."
        raise BadRequest(message, param="tool_choice", code="invalid_value")
    return CallShape(required=True, single=bool(name) or not parallel, function=name)


_FUNCTION = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "parameters": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name"],
}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
Tools = Annotated[
    list[Json],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(_tools),
    WithJsonSchema({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
]
ToolChoice = Annotated[
    str | Json,
    BeforeValidator(_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string", "minLength": 1}},
                            "required": ["name"],
                        },
                    },
                    "required": ["type", "function"],
                },
                {
                    "type": "object",
                    "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": {"type": "object"}},
                    "required": ["type", "allowed_tools"],
                },
            ]
        }
    ),
]
