"""Functions that a model may call: how clients offer them, and how they send calls and results back.

A custom tool is a function whose one argument is a text, its `input`, which may follow a grammar.
"""

import json
from collections.abc import Collection
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

from gateway.api.common.fields import bounded
from gateway.api.common.ignored import Ignored
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import InputGrammar

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


def _schema(value: object) -> object:
    bounded(value, MAX_TOOL_DEPTH, MAX_TOOL_VALUES)
    return value


Schema = Annotated[dict[str, Any], BeforeValidator(_schema)]
"""A JSON Schema that an answer follows."""


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
    """A tool as chat completions have it, of one that is flat as in `/v1/responses`."""
    match tool:
        case {"type": "function", "function": _}:
            return tool
        case {"type": "function", "name": _, **fields}:
            return {"type": "function", "function": fields | {"name": tool["name"]}}
        case {"type": "custom", "custom": _}:
            return tool
        case {"type": "custom", "name": _, "format": {"type": "grammar", **grammar}, **fields}:
            form = {"type": "grammar", "grammar": grammar}
            return {"type": "custom", "custom": fields | {"name": tool["name"], "format": form}}
        case {"type": "custom", "name": _, **fields}:
            return {"type": "custom", "custom": fields | {"name": tool["name"]}}
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
_GRAMMAR: Json = {
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
_FLAT_GRAMMAR = {
    "type": "object",
    "properties": {"type": {"const": "grammar"}, **_GRAMMAR["properties"]},
    "required": ["type", "syntax", "definition"],
}
_CUSTOM: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
        "description": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "format": {"anyOf": _FORMATS},
    },
    "required": ["name"],
}
_FLAT_CUSTOM = {
    "type": "object",
    "properties": {
        "type": {"const": "custom"},
        **_CUSTOM["properties"],
        "format": {"anyOf": [_FLAT_GRAMMAR, *_FORMATS]},
    },
    "required": ["type", "name"],
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
        _FLAT_CUSTOM,
        other_tool("function", "custom"),
    ]
}
Tools = Annotated[
    list[Json],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(_tools),
    WithJsonSchema({"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
]
