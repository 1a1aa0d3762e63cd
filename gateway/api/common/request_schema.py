"""What all request bodies have in common. Each API's folder has its own in a `schema.py` or `*_schema.py`.

The checks of bodies need no model. The defaults are OpenAI's; a default of the model's own replaces them
(see `openai/translate.py`). Ranges and defaults of sampling parameters are declared in
`proto/sampling.proto`. A string is no number. A field that nobody knows is noted and left out, or refused
where the gateway's settings say so.
"""

from functools import cache
from typing import ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.api.common.fields import MAX_INT32, nullable
from gateway.api.common.ignored import Ignored


class BodyPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    place: ClassVar[str] = ""
    """What comes before the names of its fields where they are noted as ignored."""

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, value: object, info: ValidationInfo) -> object:
        """Without fields that nobody knows, which are noted in the context, if there is one."""
        ignored = info.context
        if not (isinstance(value, dict) and isinstance(ignored, Ignored)):
            return value
        known = cls.model_fields
        unknown = [name for name in value if name not in known]
        if not unknown:
            return value
        for name in unknown:
            if value[name] is not None:
                ignored.note(cls.place + name)
        return {name: part for name, part in value.items() if name in known}

    @classmethod
    @cache
    def whole(cls) -> frozenset[str]:
        """Names of the fields that are whole numbers."""
        return frozenset(name for name, field in cls.model_fields.items() if _is_whole(field.annotation))

    @classmethod
    def value_of(cls, name: str, value: object) -> object:
        """The value of the field `name`.

        A whole number may be written with a fraction of zero: some languages know no other numbers.
        """
        if type(value) is float and name in cls.whole() and value.is_integer():
            return int(value)
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema, with fields that nobody knows."""
        reference = handler(core)
        handler.resolve_ref_schema(reference).pop("additionalProperties", None)
        return reference


class RequestBody(BodyPart):
    """Fields that all endpoints have in common."""

    # Accepted without effect: they concern the client's bookkeeping or the provider's, not the answer.
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "service_tier",
            "store",
        )
    )
    # OpenAI's parameters that are not supported, each with the values that change nothing and are accepted.
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {}
    # Lists whose parts are of several types.
    mixed: ClassVar[frozenset[str]] = frozenset()

    # Whether it is about a model: the only one, if it names none.
    for_model: ClassVar[bool] = True

    model: str = Field("", description="May be left out where only one model is served.")
    cache_salt: str = Field("", max_length=256)
    user: str = Field(
        "", max_length=256, description="Who asks: shares what the tenant gets with the tenant's other users."
    )
    priority: int = Field(0, ge=-(2**31), le=MAX_INT32, description="Lower runs earlier.")
    timeout: float | None = Field(None, gt=0, le=86400, description="Seconds that the answer may take.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema as `gateway.api.common.body` reads a body: see its `_supported`."""
        reference = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(reference)
        required = schema.get("required", ())
        schema["properties"] = {
            name: field if name in required else nullable(field)
            for name, field in schema["properties"].items()
        }
        for name in sorted(cls.ignored):
            schema["properties"][name] = {"description": "Accepted without effect."}
        for name, values in cls.neutral.items():
            schema["properties"][name] = {"enum": [*values, None], "description": "Not supported."}
        return reference


def _is_whole(annotation: object) -> bool:
    return annotation is int or any(map(_is_whole, get_args(annotation)))
