"""What a message says: a string, or parts of several types."""

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError

from gateway.api.messages.attached import FILE_PARTS, FILE_SCHEMAS, file_as_text
from gateway.api.messages.images import IMAGE_PART, from_part
from gateway.api.messages.results import OTHER_FILE

TEXT_PARTS = {"text": "text", "refusal": "refusal", "input_text": "text", "output_text": "text"}
"""Types of a message's parts that are text, and the field that has it. Other servers' models refuse; the last
two are of the Responses API."""


def text_of(value: object, files: bool = False) -> str:
    """Message content as one string. The texts of a list of parts are joined. An ellipsis: there is none.

    `files`: there may be images among them, see `images.py`, and files that are texts.
    """
    if isinstance(value, str):
        return value
    if value is ...:
        raise PydanticCustomError("missing", "Input is missing")
    if not isinstance(value, list):
        raise PydanticCustomError("string_type", "Input should be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
            raise PydanticCustomError("string_type", "Input should be a string or a list of text parts")
        if kind == "image_url" and files:
            texts.append(from_part(part))
            continue
        if kind in FILE_PARTS and files:
            part, kind = file_as_text(part), "text"
        if kind not in TEXT_PARTS:
            what = "Only parts of types 'text', 'image_url' and 'file' are" if files else "Only texts are"
            raise PydanticCustomError("unsupported_value", "{what} supported here", {"what": what})
        # Other fields are hints for caches and the like.
        field = TEXT_PARTS[kind]
        if not isinstance(text := part.get(field), str):
            raise PydanticCustomError("string_type", f"A {kind} part has the fields 'type' and '{field}'")
        texts.append(text)
    return "".join(texts)


_TEXT_PARTS: list[JsonSchemaValue] = [
    {
        "type": "object",
        "properties": {"type": {"const": kind}, field: {"type": "string"}},
        "required": ["type", field],
    }
    for kind, field in TEXT_PARTS.items()
]


_THINKING_PART: JsonSchemaValue = {
    "type": "object",
    "description": "What the assistant thought before.",
    "properties": {
        "type": {"const": "thinking"},
        "thinking": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _TEXT_PARTS}}]},
    },
    "required": ["type", "thinking"],
}


def _content(*parts: JsonSchemaValue) -> WithJsonSchema:
    """A string, or parts of any of these schemas."""
    several = {"type": "array", "items": {"anyOf": list(parts)}}
    return WithJsonSchema({"anyOf": [{"type": "string"}, several, {"type": "null"}]})


Text = Annotated[str | None, BeforeValidator(text_of), _content(*_TEXT_PARTS)]
"""A string or text parts."""


Content = Annotated[
    str | None,
    BeforeValidator(partial(text_of, files=True)),
    _content(*_TEXT_PARTS, IMAGE_PART, *FILE_SCHEMAS, _THINKING_PART, OTHER_FILE),
]
"""What a message says: a string, or texts, images and files. Null stands only where a message may have
none."""
