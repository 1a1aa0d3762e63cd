"""Functions that a model may call: how clients offer them, and how they send calls and results back.

A custom tool is a function whose one argument is a text, its `input`, which may follow a grammar.
"""

import json
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.api.fields import bounded
from gateway.api.ignored import Ignored
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import CallShape, InputGrammar

MAX_TOOLS = 1024
MAX_TOOL_DEPTH = 64
MAX_TOOL_VALUES = 2**16
"""Values in the schemas of all functions."""
MAX_CALLS = 1024
"""Calls in one message."""
MAX_NAME = 256
MAX_ID = 2**16
"""Characters of a call's id. Gemini's, through LiteLLM, carry signatures of thousands."""
INPUT = "input"
"""The argument of a custom tool's call."""
SYNTAXES = ("lark", "regex")

Json = dict[str, Any]


class LenientPart(BaseModel):
    """Other fields are those of other servers, and clients send them back. Null is an absent field."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: part for name, part in value.items() if part is not None}


def _arguments(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


CallArguments = Annotated[
    str,
    BeforeValidator(_arguments),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}),
]
"""A call's arguments: a JSON object as text, or the object itself."""


class CalledFunction(LenientPart):
    """A function and its arguments."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: CallArguments = ""


class FunctionCall(LenientPart):
    """A call that the model has made."""

    id: str = Field("", max_length=MAX_ID)
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledCustom(LenientPart):
    """A custom tool and its input."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    input: str


class CustomCall(LenientPart):
    """A call of a custom tool that the model has made."""

    id: str = Field("", max_length=MAX_ID)
    type: Literal["custom"]
    custom: CalledCustom


def _as_function_call(value: object) -> object:
    if not isinstance(value, dict) or value.get("type") != "custom":
        return value
    match value.get("custom"):
        case {"name": str(name), "input": str(text)}:
            function = {"name": name, "arguments": input_arguments(text)}
            return {"id": value.get("id"), "function": function}
    raise PydanticCustomError("invalid_call", "Input should have a 'custom' with a 'name' and an 'input'")


ToolCall = Annotated[
    FunctionCall, BeforeValidator(_as_function_call, json_schema_input_type=FunctionCall | CustomCall)
]


def input_arguments(text: str) -> str:
    """The arguments of a custom tool's call."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The input in the arguments of a custom tool's call; these themselves if they are something else."""
    text = json.loads(arguments).get(INPUT)
    return text if isinstance(text, str) else arguments


def functions(
    value: object, info: ValidationInfo, kinds: Collection[str | None], place: str = "tools"
) -> object:
    """The tools of the list `place` that the client runs itself: those whose `type` is one of `kinds`.

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
            info.context.note(f"{place}[{number}]")
        else:
            param = f"{place}[{number}].type"
            message = f"'{param}': only functions are supported."
            raise BadRequest(message, param=param, code="unsupported_parameter")
    return kept


def _tools(value: object, info: ValidationInfo) -> object:
    kept = functions(value, info, ("function", "custom"))
    if not isinstance(kept, list):
        return kept
    tools = [_nested(tool) for tool in kept]
    for number, tool in enumerate(tools):
        _check_tool(tool, f"tools[{number}]")
    return tools


def _nested(tool: Any) -> Any:
    """A function as chat completions have it, of one that is flat as in `/v1/responses`."""
    match tool:
        case {"type": "function", "function": _}:
            return tool
        case {"type": "function", "name": _, **fields}:
            return {"type": "function", "function": fields | {"name": tool["name"]}}
    return tool


def _check_tool(tool: object, param: str) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise BadRequest(f"'{param}' must be an object with a 'type'.", param=param, code="invalid_type")
    kind = tool["type"]
    function = tool.get(kind)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        message = f"'{param}.{kind}' must be an object with a 'name' of 1 to {MAX_NAME} characters."
        raise BadRequest(message, param=f"{param}.{kind}", code="invalid_value")
    assert isinstance(function, dict)
    if kind == "custom":
        _check_custom(function, f"{param}.custom")
        return
    if not isinstance(function.get("parameters") or {}, dict):
        message = f"'{param}.function.parameters' must be a JSON schema."
        raise BadRequest(message, param=f"{param}.function.parameters", code="invalid_type")
    if not isinstance(function.get("strict"), bool | None):
        message = f"'{param}.function.strict' must be true or false."
        raise BadRequest(message, param=f"{param}.function.strict", code="invalid_type")


def _check_custom(custom: Json, param: str) -> None:
    if not isinstance(custom.get("description"), str | None):
        message = f"'{param}.description' must be a text."
        raise BadRequest(message, param=f"{param}.description", code="invalid_type")
    match custom.get("format"):
        case None | {"type": "text"}:
            return
        case {"type": "grammar", "grammar": {"syntax": syntax, "definition": str(definition)}}:
            if syntax in SYNTAXES and definition:
                return
    message = f"'{param}.format' must be of type 'text', or 'grammar' with a 'grammar': its 'syntax', "
    message += "'lark' or 'regex', and its 'definition'."
    raise BadRequest(message, param=f"{param}.format", code="invalid_value")


def name_of(tool: Json) -> str:
    """Name of a function or custom tool."""
    name: str = tool[tool["type"]]["name"]
    return name


def grammar_of(tool: Json) -> InputGrammar | None:
    """The grammar of a custom tool's input, if it has one."""
    match tool.get("custom"):
        case {"format": {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}}:
            return InputGrammar(syntax=syntax, definition=definition)
    return None


def as_function(tool: Json) -> Json:
    """A tool as the model sees it: a custom one as a function, whose description tells its grammar."""
    if tool["type"] != "custom":
        return tool
    about, grammar = tool["custom"].get("description"), grammar_of(tool)
    told = f"`{INPUT}` follows this grammar ({grammar.syntax}):\n{grammar.definition}" if grammar else ""
    parameters = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    description = "\n\n".join(filter(None, (about, told)))
    function = {"name": name_of(tool), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


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


_FUNCTION: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "parameters": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name"],
}
_FLAT = {
    "type": "object",
    "properties": {"type": {"const": "function"}, **_FUNCTION["properties"]},
    "required": ["type", "name"],
}
_GRAMMAR = {
    "type": "object",
    "properties": {"syntax": {"enum": list(SYNTAXES)}, "definition": {"type": "string", "minLength": 1}},
    "required": ["syntax", "definition"],
}
_FORMATS = [
    {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
    {
        "type": "object",
        "properties": {"type": {"const": "grammar"}, "grammar": _GRAMMAR},
        "required": ["type", "grammar"],
    },
    {"type": "null"},
]
_CUSTOM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "description": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "format": {"anyOf": _FORMATS},
    },
    "required": ["name"],
}


def other_tool(*kinds: str) -> Json:
    """JSON Schema of a tool that `functions` leaves out: its type is none of `kinds`."""
    return {
        "type": "object",
        "description": "A tool that runs elsewhere, such as `web_search`: it is ignored.",
        "properties": {"type": {"type": "string", "not": {"enum": list(kinds)}}},
        "required": ["type"],
    }


_TOOL = {
    "anyOf": [
        *(
            {
                "type": "object",
                "properties": {"type": {"const": kind}, kind: schema},
                "required": ["type", kind],
            }
            for kind, schema in (("function", _FUNCTION), ("custom", _CUSTOM))
        ),
        _FLAT,
        other_tool("function", "custom"),
    ]
}
Tools = Annotated[
    list[Json],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(_tools),
    WithJsonSchema({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
]


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
                {"enum": ["none", "auto", "required"]},
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
