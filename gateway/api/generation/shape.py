"""What the text of an answer must look like, in the ways that clients say it.

OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`, and the fields of SGLang and
llama.cpp all become one `Shape`. The tokenizer finds out whether a schema or a pattern makes sense.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema
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
        if len(value) > MAX_CHARACTERS:
            return value  # refused for its length: nobody has counted the objects that it would make
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


def _structural_tag(value: object) -> object:
    """A structural tag as JSON text."""
    text = _schema(value)
    assert isinstance(text, str)
    if len(text) > MAX_CHARACTERS:
        return text
    tag = {key: part for key, part in json.loads(text).items() if part}
    if tag.pop("type", "structural_tag") == "structural_tag" and tag.keys() in _TAGS:
        return json.dumps(tag, ensure_ascii=False, separators=(",", ":"))
    raise PydanticCustomError("structural_tag", f"Input should have {_OF_A_TAG}")


_TAGS = ({"format"}, {"structures", "triggers"})
_OF_A_TAG = "a 'format', or 'structures' and 'triggers'"
_Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
_Optional = Annotated[str, Field(max_length=MAX_CHARACTERS)]
"""Empty: clients that write out all fields mean none."""
_DOCUMENTED = {"anyOf": [{"type": "object"}, {"type": "string", "minLength": 2}]}
_Schema = Annotated[_Text, BeforeValidator(_schema), WithJsonSchema(_DOCUMENTED)]
"""A JSON Schema: an object, or its text."""
_Tag = Annotated[_Text, BeforeValidator(_structural_tag), WithJsonSchema(_DOCUMENTED)]
"""A structural tag: an object, or its text."""
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


_FORMATS = {
    "text": ((set(),), "nothing else"),
    "json_object": ((set(), {"schema"}), "a 'schema' or nothing"),
    "json_schema": (({"json_schema"}, {"schema"}), "a 'json_schema' or a 'schema'"),
    "structural_tag": (({"structural_tag"},), _OF_A_TAG),
}
"""By the type of a `response_format`: fields that go with it, and these in words."""


def _with_a_tag(schema: dict[str, Any]) -> None:
    kinds = {"format": "object", "structures": "array", "triggers": "array"}
    fields = {name: {"type": kind, "description": "Of a `structural_tag`."} for name, kind in kinds.items()}
    schema["properties"] |= fields


class ResponseFormat(_Part):
    """OpenAI's `response_format`, also with llama.cpp's `schema`, or as a structural tag."""

    model_config = ConfigDict(**_Part.model_config, json_schema_extra=_with_a_tag)

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    plain_schema: _Schema | None = Field(
        None, alias="schema", description="In place of `json_schema`, or with `json_object`."
    )
    structural_tag: SkipJsonSchema[_Tag | None] = None

    @model_validator(mode="before")
    @classmethod
    def _tag_in_one_field(cls, given: Any) -> Any:
        match given:
            case {"type": "structural_tag", **tag}:
                return {"type": "structural_tag", "structural_tag": tag}
        return given

    def shape(self) -> Shape | None:
        fields = {
            "json_schema": self.json_schema,
            "schema": self.plain_schema,
            "structural_tag": self.structural_tag,
        }
        allowed, words = _FORMATS[self.type]
        if {name for name, value in fields.items() if value is not None} not in allowed:
            message = f"'response_format': with the type '{self.type}' goes {words}."
            raise BadRequest(message, param="response_format", code="invalid_value")
        if self.json_schema is not None:
            return Shape(json_schema=self.json_schema.json_schema, lenient=not self.json_schema.strict)
        if self.plain_schema is not None:
            return Shape(json_schema=self.plain_schema, lenient=True)
        if self.structural_tag is not None:
            return Shape(structural_tag=self.structural_tag)
        return Shape(json_schema=ANY_OBJECT) if self.type == "json_object" else None


class StructuredOutputs(_Part):
    """vLLM's `structured_outputs`: one shape, or none."""

    json_schema: _Schema | None = Field(None, alias="json")
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = Field(None, description="In Lark's notation or in GBNF.")
    json_object: bool | None = None
    structural_tag: _Tag | None = None
    disable_any_whitespace: bool | None = Field(None, description="No white space between the parts of JSON.")

    def shape(self) -> Shape | None:
        given = [name for name in type(self).model_fields if getattr(self, name) not in (None, False)]
        given = [name for name in given if name != "disable_any_whitespace"]
        if not given:
            return None
        if len(given) > 1:
            message = "'structured_outputs' may have one of its fields, not several."
            raise BadRequest(message, param="structured_outputs", code="invalid_value")
        compact = bool(self.disable_any_whitespace) and given[0] in ("json_schema", "json_object")
        if self.json_object:
            return Shape(json_schema=ANY_OBJECT, compact=compact)
        shape, value = Shape(compact=compact), getattr(self, given[0])
        setattr(shape, given[0], json.dumps(value) if given[0] == "choice" else value)
        return shape


class ShapedBody(BaseModel):
    """The fields of a request that say what an answer's text must look like. They ask for one shape at most.

    The last four are SGLang's and llama.cpp's.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: _Text | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Text | None = None
    json_schema: _Schema | None = None
    regex: _Optional | None = None
    grammar: _Optional | None = Field(None, description="In GBNF or Lark's notation.")
    ebnf: _Optional | None = None

    @property
    def shape(self) -> Shape | None:
        """What the client asks for. Raises `BadRequest`.

        Clients of several servers repeat a shape under the name that each of these knows.
        """
        shapes = {
            "response_format": None if self.response_format is None else self.response_format.shape(),
            "structured_outputs": self.structured_outputs and self.structured_outputs.shape(),
            "guided_json": self.guided_json and Shape(json_schema=self.guided_json),
            "guided_regex": self.guided_regex and Shape(regex=self.guided_regex),
            "guided_choice": self.guided_choice and Shape(choice=json.dumps(self.guided_choice)),
            "guided_grammar": self.guided_grammar and Shape(grammar=self.guided_grammar),
            "json_schema": self.json_schema and Shape(json_schema=self.json_schema),
            "regex": self.regex and Shape(regex=self.regex),
            "grammar": self.grammar and Shape(grammar=self.grammar),
            "ebnf": self.ebnf and Shape(grammar=self.ebnf),
        }
        given = {name: shape for name, shape in shapes.items() if isinstance(shape, Shape)}
        if not given:
            return None
        name, shape = next(iter(given.items()))
        if any(other != shape for other in given.values()):
            names = " and ".join(f"'{name}'" for name in given)
            message = f"{names}: only one can be followed."
            raise BadRequest(message, param=name, code="invalid_value")
        shape.param = name
        return shape
