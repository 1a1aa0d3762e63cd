"""Fields of request bodies: parameters that the contract declares, and fields that come in several shapes."""

from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.errors import BadRequest
from proto.sampling import PARAMETERS

MAX_INT32 = 2**31 - 1
MAX_PROMPTS = 128
MAX_STOP_TOKENS = 128
MAX_INPUTS = 2048
MAX_STOPS = 16

TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
Count = Annotated[int, Field(ge=1, le=MAX_INT32)]


_DECLARED = object()


def declared(name: str, *, default: object = _DECLARED, **more: Any) -> Any:
    """A field with the range, and unless given the default, that `proto/sampling.proto` declares."""
    parameter = PARAMETERS[name]
    values = parameter.client
    bounds: dict[str, Any] = {"gt" if values.above else "ge": values.low, "le": values.high}
    return Field(parameter.default if default is _DECLARED else default, **bounds, **more)


def _stops(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_or_several(value: object, name: str, most: int) -> list[str | list[int]]:
    """One text or several, each a string or token ids, as a list. `name`: the field's name, for errors."""
    if isinstance(value, str):
        return [_one_text(value, name)]
    if not isinstance(value, list):
        raise BadRequest(
            f"'{name}' must be a string, a list of strings, a list of token ids or a list of such lists.",
            param=name,
            code="invalid_type",
        )
    if not value:
        raise BadRequest(f"'{name}' is empty.", param=name, code="invalid_value")
    if isinstance(value[0], int):
        return [_one_text(value, name)]
    if len(value) > most:
        raise BadRequest(f"At most {most} {name}s a request.", param=name, code="invalid_value")
    kind = type(value[0])
    for i, text in enumerate(value):
        if type(text) is not kind:
            message = f"{name.capitalize()}s must be all text or all token ids."
            raise BadRequest(message, param=f"{name}[{i}]", code="invalid_type")
    return [_one_text(text, f"{name}[{i}]") for i, text in enumerate(value)]


def _one_text(value: object, param: str) -> str | list[int]:
    if not isinstance(value, str | list):
        raise BadRequest(f"'{param}' must be text or token ids.", param=param, code="invalid_type")
    if not value:
        raise BadRequest(f"'{param}' is empty.", param=param, code="invalid_value")
    if isinstance(value, list):
        for i, token in enumerate(value):
            if type(token) is not int:
                raise BadRequest("A token id is an integer.", param=f"{param}[{i}]", code="invalid_type")
            if not 0 <= token <= MAX_INT32:
                message = f"{token if abs(token) < 2**64 else 'This'} is not a token id."
                raise BadRequest(message, param=f"{param}[{i}]", code="invalid_value")
    return value


def _text(value: object) -> object:
    """Message content as one string. The texts of a list of parts are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("string_type", "Input should be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
            raise PydanticCustomError("string_type", "Input should be a string or a list of text parts")
        if kind != "text":
            raise PydanticCustomError("unsupported_value", "Only parts of type 'text' are supported")
        if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
            raise PydanticCustomError("string_type", "A text part has the fields 'type' and 'text'")
        texts.append(part["text"])
    return "".join(texts)


def _refused(value: object) -> None:
    raise PydanticCustomError("unsupported_parameter", "This is not supported")


_TEXTS = {"type": "array", "items": {"type": "string"}}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_SEVERAL = WithJsonSchema(
    {"anyOf": [{"type": "string"}, _TEXTS, _TOKENS, {"type": "array", "items": _TOKENS}]}
)
Prompts = Annotated[
    list[Any], BeforeValidator(partial(_one_or_several, name="prompt", most=MAX_PROMPTS)), _SEVERAL
]
Inputs = Annotated[
    list[Any], BeforeValidator(partial(_one_or_several, name="input", most=MAX_INPUTS)), _SEVERAL
]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_stops),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS | {"maxItems": MAX_STOPS}]}),
]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]})]
Unsupported = Annotated[None, BeforeValidator(_refused)]
"""A field of OpenAI's API that is not supported: only null is accepted."""
