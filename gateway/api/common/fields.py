"""Fields of request bodies: parameters that the contract declares, and fields that come in several shapes."""

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, PydanticKnownError

from gateway.errors import BadRequest
from gateway.http.json_text import value_of
from proto.sampling import MAX_ALLOWED, MAX_BIAS, MAX_BIASES, PARAMETERS

MAX_INT32 = 2**31 - 1
MAX_PROMPTS = 128
MAX_STOP_TOKENS = 128
MAX_INPUTS = 2048
MAX_STOPS = 64
MAX_STOP_LENGTH = 256
"""Characters of a stop string, or of a bad word."""
MAX_STOP_CHARACTERS = 4096
"""Of all stop strings together: the tokenizer makes an automaton of them."""
MAX_BAD_WORDS = 128
MAX_BREAKERS = 32
MAX_MESSAGES = 4096
MAX_MESSAGE_FIELDS = 32
"""Fields of a message that is read strictly: each unknown one costs an error object."""
MAX_DOCUMENTS = 1024
MAX_TEMPLATE_LENGTH = 65_536
"""Characters of a client's chat template."""
MAX_ARGUMENT_DEPTH = 16
MAX_ARGUMENTS = 4096
"""Values in the variables of a chat template, those within lists and objects among them."""

TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
Count = Annotated[int, Field(ge=1, le=MAX_INT32)]


def _random(value: object) -> object:
    """None for the -1 of vLLM, llama.cpp and Ollama."""
    return None if value == -1 else value


Seed = Annotated[
    int | None,
    Field(ge=-(2**63), le=2**64 - 1, description="Taken modulo 2^64. -1: a random one."),
    BeforeValidator(_random),
]
"""None: a random one."""


def _not_zero(value: int) -> int:
    if value == 0:
        raise PydanticCustomError("not_zero", "Input should be -1, or at least 1")
    return value


_KEPT = {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": MAX_INT32}]}
Kept = Annotated[int, Field(ge=-1, le=MAX_INT32), AfterValidator(_not_zero), WithJsonSchema(_KEPT)]
"""Tokens to keep of a text. -1: as many as the model takes."""


_DECLARED = object()


def declared(name: str, *, default: object = _DECLARED, **more: Any) -> Any:
    """A field with the range, and unless given the default, that `proto/sampling.proto` declares."""
    parameter = PARAMETERS[name]
    values = parameter.client
    bounds: dict[str, Any] = {"gt" if values.above else "ge": values.low, "le": values.high}
    return Field(parameter.default if default is _DECLARED else default, **bounds | more)


def _counted(value: object, most: int) -> object:
    if isinstance(value, list | dict) and len(value) > most:
        kind = "List" if isinstance(value, list) else "Dictionary"
        sizes = {"field_type": kind, "max_length": most, "actual_length": len(value)}
        raise PydanticKnownError("too_long", sizes)
    return value


def at_most(most: int) -> BeforeValidator:
    """Refuses a list or an object that has more parts before any is validated: each wrong one costs an error
    object. It comes last in a field's type, and so sees the value first."""
    return BeforeValidator(partial(_counted, most=most))


def alternatives(asked: int | None) -> int | None:
    """The number of alternatives that a client asks for by `logprobs` and its like, of which -1 means all."""
    return MAX_INT32 if asked == -1 else asked


def nullable(field: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of a field that may also be null, which means its default."""
    outside = {name: field[name] for name in ("title", "description", "default") if name in field}
    inside = {name: value for name, value in field.items() if name not in outside}
    alternatives = inside.get("anyOf", [inside])
    null = {"type": "null"}
    return outside | {"anyOf": alternatives if null in alternatives else [*alternatives, null]}


def _stops(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _short(stops: list[str]) -> list[str]:
    if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
        raise PydanticCustomError("too_long", f"All together have at most {MAX_STOP_CHARACTERS} characters")
    return stops


def _one_or_several(value: object, name: str, most: int, empty: bool = False) -> list[str | list[int]]:
    """One text or several, each a string or token ids, as a list.

    `name`: the field's name, for errors. `empty`: strings may be empty.
    """
    if isinstance(value, str):
        return [_one_text(value, name, empty)]
    if not isinstance(value, list):
        raise BadRequest(
            f"'{name}' must be a string, a list of strings, a list of token ids or a list of such lists.",
            param=name,
            code="invalid_type",
        )
    if not value:
        raise BadRequest(f"'{name}' is empty.", param=name, code="invalid_value")
    if isinstance(value[0], int):
        return [_one_text(value, name, empty)]
    if len(value) > most:
        raise BadRequest(f"At most {most} {name}s a request.", param=name, code="invalid_value")
    kind = type(value[0])
    for i, text in enumerate(value):
        if type(text) is not kind:
            message = f"{name.capitalize()}s must be all text or all token ids."
            raise BadRequest(message, param=f"{name}[{i}]", code="invalid_type")
    return [_one_text(text, f"{name}[{i}]", empty) for i, text in enumerate(value)]


def _one_text(value: object, param: str, empty: bool) -> str | list[int]:
    if not isinstance(value, str | list):
        raise BadRequest(f"'{param}' must be text or token ids.", param=param, code="invalid_type")
    if not value and not (empty and isinstance(value, str)):
        raise BadRequest(f"'{param}' is empty.", param=param, code="invalid_value")
    if isinstance(value, list):
        for i, token in enumerate(value):
            if type(token) is not int:
                raise BadRequest("A token id is an integer.", param=f"{param}[{i}]", code="invalid_type")
            if not 0 <= token <= MAX_INT32:
                message = f"{token if abs(token) < 2**64 else 'This'} is not a token id."
                raise BadRequest(message, param=f"{param}[{i}]", code="invalid_value")
    return value


def bounded(value: object, depth: int, most: int) -> None:
    """Raises `PydanticCustomError` if JSON is nested more than `depth` times, or has over `most` values."""
    level, count = [value], 0
    for _ in range(depth):
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in containers for part in (one.values() if isinstance(one, dict) else one)]
        count += len(level)
        if count > most:
            raise PydanticCustomError("too_long", "Input has too many values")
        if not level:
            return
    raise PydanticCustomError("too_deep", "Input is nested too deeply")


def _arguments(value: object) -> object:
    """Variables of a chat template: JSON of any shape, and of bounded size and depth."""
    bounded(value, MAX_ARGUMENT_DEPTH, MAX_ARGUMENTS)
    return value


def _refused(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "This is not supported")


_STRING: JsonSchemaValue = {"type": "string", "minLength": 1}
_TOKENS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT32},
    "minItems": 1,
}


def _several(most: int, text: JsonSchemaValue) -> WithJsonSchema:
    """One text or at most `most`, each a string of this schema or token ids."""
    lists = [{"type": "array", "items": one, "minItems": 1, "maxItems": most} for one in (text, _TOKENS)]
    return WithJsonSchema({"anyOf": [text, _TOKENS, *lists]})


def _prompts(value: object, info: ValidationInfo) -> list[str | list[int]]:
    """Prompts may be empty before a gap."""
    return _one_or_several(value, "prompt", MAX_PROMPTS, empty=bool(info.data.get("suffix")))


Prompts = Annotated[list[Any], BeforeValidator(_prompts), _several(MAX_PROMPTS, {"type": "string"})]
"""Texts or token ids to continue. A field `suffix` is before this one."""
Inputs = Annotated[
    list[Any],
    BeforeValidator(partial(_one_or_several, name="input", most=MAX_INPUTS, empty=True)),
    _several(MAX_INPUTS, {"type": "string"}),
]
"""Texts to embed or to classify. An empty one may have special tokens."""
_STOP = _STRING | {"maxLength": MAX_STOP_LENGTH}
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_STOPS),
    AfterValidator(_short),
    BeforeValidator(_stops),
    WithJsonSchema({"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]}),
]


def _biases(value: object) -> object:
    """Biases by token id, which JSON can only write as a string. The size is checked first."""
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "Input should be an object")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("too_long", f"At most {MAX_BIASES} tokens can have a bias")
    biases = {}
    for token, bias in value.items():
        # A number may be written in several ways, which would be several biases of one token.
        number = int(token[:11]) if token.isascii() and token.isdecimal() else -1
        if str(number) != token or not 0 <= number <= MAX_INT32:
            raise PydanticCustomError("not_a_token", "A key is not a token id")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise PydanticCustomError("bias", f"A bias is a number in [{-MAX_BIAS:g}, {MAX_BIAS:g}]")
        biases[number] = float(bias)
    return biases


Biases = Annotated[
    dict[TokenId, float],
    BeforeValidator(_biases),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
            "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
            "maxProperties": MAX_BIASES,
        }
    ),
]
"""What is added to the logits of tokens, by their ids."""
AllowedTokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED)]
BadWords = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]], Field(max_length=MAX_BAD_WORDS)
]


def _breakers(value: object) -> object:
    """SillyTavern sends a list's JSON, or what stands between its brackets."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return value_of((text if text.startswith("[") else f"[{text}]").encode())
    except ValueError:
        raise PydanticCustomError("unsupported_value", "A text is the JSON of a list of texts") from None


_BREAKER = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
Breakers = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_BREAKERS),
    at_most(MAX_BREAKERS),
    BeforeValidator(_breakers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": _BREAKER, "maxItems": MAX_BREAKERS},
                {"type": "string", "description": "The list's JSON, with or without its brackets."},
            ]
        }
    ),
]
"""Texts beyond which no repetition reaches."""
Arguments = Annotated[dict[str, Any], BeforeValidator(_arguments)]
Documents = Annotated[list[Arguments], Field(max_length=MAX_DOCUMENTS), BeforeValidator(_arguments)]
Unsupported = Annotated[None, BeforeValidator(_refused)]
"""A field of OpenAI's API that is not supported: only null is accepted."""
