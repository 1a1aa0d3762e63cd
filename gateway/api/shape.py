"""What the text of an answer must look like, in the ways that clients say it.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*` all become one `Shape`. The
tokenizer finds out whether a schema or a pattern makes sense.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.errors import BadRequest
from proto.tokenizer_pb2 import Shape

MAX_CHARACTERS = 65_536
MAX_DEPTH = 64
MAX_CHOICES = 4096
ANY_OBJECT = '{"type":"object"}'


def _schema(value: object) -> object:
    """A JSON Schema as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise PydanticCustomError("not_json", "This is not JSON") from error
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "Input should be an object: a JSON Schema")
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    raise PydanticCustomError("too_deep", "Input is nested too deeply")


_Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
_DOCUMENTED = {"anyOf": [{"type": "object"}, {"type": "string", "minLength": 2}]}
_Schema = Annotated[_Text, BeforeValidator(_schema), WithJsonSchema(_DOCUMENTED)]
"""A JSON Schema: an object, or its text."""
_Choices = Annotated[list[_Text], Field(min_length=1, max_length=MAX_CHOICES)]


class _Part(BaseModel):
    """A part that takes no fields of others, but for those that ask for nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {
            key: value
            for key, value in given.items()
            if key in known or not (value is None or value is False)
        }


class NamedSchema(_Part):
    """A JSON Schema with a name."""

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    json_schema: _Schema = Field(alias="schema")
    strict: bool | None = Field(None, description="Refuse keywords that are not supported.")


class ResponseFormat(_Part):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def shape(self) -> Shape | None:
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = "'json_schema' goes with the type 'json_schema', and with no other."
            raise BadRequest(message, param="response_format", code="invalid_value")
        if self.json_schema is not None:
            return Shape(json_schema=self.json_schema.json_schema, lenient=not self.json_schema.strict)
        return Shape(json_schema=ANY_OBJECT) if self.type == "json_object" else None


class StructuredOutputs(_Part):
    """vLLM's `structured_outputs`: one of its fields, or none."""

    json_schema: _Schema | None = Field(None, alias="json")
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = Field(None, description="In Lark's notation or in GBNF.")
    json_object: bool | None = None
    structural_tag: _Schema | None = None

    def shape(self) -> Shape | None:
        given = [name for name in type(self).model_fields if getattr(self, name) not in (None, False)]
        if not given:
            return None
        if len(given) > 1:
            message = "'structured_outputs' may have one of its fields, not several."
            raise BadRequest(message, param="structured_outputs", code="invalid_value")
        if self.json_object:
            return Shape(json_schema=ANY_OBJECT)
        shape, value = Shape(), getattr(self, given[0])
        setattr(shape, given[0], json.dumps(value) if given[0] == "choice" else value)
        return shape


class ShapedBody(BaseModel):
    """The fields of a request that say what an answer's text must look like. At most one of them is given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: _Text | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Text | None = None

    @property
    def shape(self) -> Shape | None:
        """What the client asks for. Raises `BadRequest`."""
        shapes = {
            "response_format": None if self.response_format is None else self.response_format.shape(),
            "structured_outputs": self.structured_outputs and self.structured_outputs.shape(),
            "guided_json": self.guided_json and Shape(json_schema=self.guided_json),
            "guided_regex": self.guided_regex and Shape(regex=self.guided_regex),
            "guided_choice": self.guided_choice and Shape(choice=json.dumps(self.guided_choice)),
            "guided_grammar": self.guided_grammar and Shape(grammar=self.guided_grammar),
        }
        given = {name: shape for name, shape in shapes.items() if isinstance(shape, Shape)}
        if len(given) > 1:
            names = " and ".join(f"'{name}'" for name in given)
            message = f"{names}: only one can be followed."
            raise BadRequest(message, param=next(iter(given)), code="invalid_value")
        for name, shape in given.items():
            shape.param = name
            return shape
        return None
