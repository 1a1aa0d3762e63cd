"""Whether a model thinks before it answers, and how much, in the forms of several servers' chat APIs."""

from typing import Annotated, ClassVar

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from gateway.api.common.ignored import Ignored
from gateway.api.common.request_schema import BodyPart


class Reasoning(BodyPart):
    """How much the model thinks before it answers, as OpenRouter has it."""

    place: ClassVar[str] = "reasoning."

    effort: str | None = Field(None, max_length=64, description="Another name of `reasoning_effort`.")
    enabled: bool | None = Field(None, description="Another name of `thinking`.")


def _switch(value: object, info: ValidationInfo) -> object:
    match value:
        case "auto" | "enabled" | "disabled":
            return None if value == "auto" else value == "enabled"
        case {"type": str(kind), **others}:
            if isinstance(info.context, Ignored):
                for name in others:
                    info.context.note(f"{info.field_name}.{name}")
            return None if kind == "auto" else kind != "disabled"
    return value


def _reasoning(value: object) -> object:
    match value:
        case str():
            return {"effort": value}
        case bool():
            return {"enabled": value}
    return value


def _or_ignored(value: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
    """None for what cannot be read, which is noted; where nothing is ignored, it is refused."""
    try:
        return read(value)
    except ValidationError:
        if not isinstance(info.context, Ignored):
            raise
        info.context.note(str(info.field_name))
        return None


Switch = Annotated[
    bool | None,
    BeforeValidator(_switch),
    WrapValidator(_or_ignored),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {"enum": ["auto", "enabled", "disabled"]},
                {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]},
            ]
        }
    ),
]
Reasonings = Annotated[
    Reasoning | None,
    BeforeValidator(_reasoning, json_schema_input_type=Reasoning | str | bool | None),
    WrapValidator(_or_ignored),
]
"""A text is the effort, and a boolean the switch."""
