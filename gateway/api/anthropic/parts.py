"""The messages of Anthropic's Messages API: their parts, and what they are as messages of the chat API."""

import json
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.api.common.ignored import Ignored
from gateway.api.messages.attached import paragraphs
from gateway.api.messages.images import IMAGE_URL, from_base64, from_url
from gateway.api.messages.results import OtherFile, earlier_readable, readable, readable_part
from gateway.api.messages.tools import MAX_CALLS, MAX_ID, MAX_NAME, LenientPart

MAX_BLOCKS = 2 * MAX_CALLS
"""Parts of one message."""

Json = dict[str, Any]


class TextPart(LenientPart):
    """A text."""

    type: Literal["text"]
    text: str


def _image(value: object) -> str:
    """A file with an image as text."""
    match value:
        case {"type": "base64", "data": str(data)}:
            return from_base64(data)
        case {"type": "url", "url": str(url)}:
            return from_url(url)
    message = "An image's source has the type 'base64' and 'data', or the type 'url' and a URL"
    raise PydanticCustomError("unsupported_value", message)


_IMAGE_FILE = {"type": "string", "description": "A PNG, JPEG, WebP or GIF file in base64."}
_IMAGE_SOURCES = [
    {
        "type": "object",
        "properties": {"type": {"const": kind}, name: schema},
        "required": ["type", name],
    }
    for kind, name, schema in (("base64", "data", _IMAGE_FILE), ("url", "url", IMAGE_URL))
]


class ImagePart(LenientPart):
    """An image."""

    type: Literal["image"]
    source: Annotated[str, BeforeValidator(_image), WithJsonSchema({"anyOf": _IMAGE_SOURCES})]

    @property
    def text(self) -> str:
        """See `messages/images.py`."""
        return self.source


class ThinkingPart(LenientPart):
    """What the model thought before."""

    type: Literal["thinking"]
    thinking: str


class HiddenPart(LenientPart):
    """A thought that cannot be read, or a note about tools and servers. It is left out: the model sees all
    tools from the beginning."""

    type: Literal["redacted_thinking", "tool_addition", "tool_removal", "fallback"]


class ToolUsePart(LenientPart):
    """A call that the model has made."""

    type: Literal["tool_use"]
    id: str = Field(max_length=MAX_ID)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    input: Json = Field(default_factory=dict)


def _texts(value: object) -> object:
    """A text, or the texts of a list of text parts, joined."""
    return "".join(_parted(value)) if isinstance(value, list) else value


def _parted(value: list[Any]) -> list[str]:
    """The texts of a list of text parts."""
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise PydanticCustomError("unsupported_value", "Only parts of type 'text' are supported")
        if part.get("type") != "text":
            raise PydanticCustomError("unsupported_value", "Only parts of type 'text' are supported")
    return [part["text"] for part in value]


_TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_TEXTS = WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_PARTS]})
Texts = Annotated[str, BeforeValidator(_texts), _TEXTS]


def _each(value: object) -> object:
    """The texts of a list of text parts, or the one text, as a list."""
    if isinstance(value, str):
        return [value]
    return _parted(value) if isinstance(value, list) else value


EachText = Annotated[list[str], BeforeValidator(_each), _TEXTS]


class PlainSource(LenientPart):
    """A document's text."""

    type: Literal["text"]
    text: str = Field(alias="data")


class PartsSource(LenientPart):
    """A document's text, in parts."""

    type: Literal["content"]
    text: Texts = Field(alias="content")


class DocumentPart(LenientPart):
    """A text to draw on."""

    type: Literal["document"]
    source: Annotated[PlainSource | PartsSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        return paragraphs(self.title, self.context, self.source.text)


class SearchResultPart(LenientPart):
    """A text that a search has found, and where."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Texts

    @property
    def text(self) -> str:
        return paragraphs(self.title, self.source, self.content)


class ReferencePart(LenientPart):
    """A tool that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str = Field(max_length=MAX_NAME)

    @property
    def text(self) -> str:
        return f"{self.tool_name}\n"


_Readable = TextPart | DocumentPart | SearchResultPart | ImagePart


def _known(value: object, kinds: tuple[str, ...]) -> object:
    """Parts, whose types are among `kinds`; a text is one part."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for part in value if isinstance(value, list) else ():
        if isinstance(part, dict) and part.get("type") not in kinds:
            message = f"Only parts of types {', '.join(kinds)} are supported"
            raise PydanticCustomError("unsupported_value", message)
    return value


_READABLE = ("text", "document", "search_result", "image")
_ResultPart = Annotated[_Readable | ReferencePart, Field(discriminator="type")]
_RESULT_PART: TypeAdapter[_ResultPart] = TypeAdapter(_ResultPart)


def _result(value: object) -> object:
    return _known(value, (*_READABLE, "tool_reference"))


class ToolResultPart(LenientPart):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=MAX_ID)
    content: Annotated[
        list[_ResultPart],
        Field(max_length=MAX_BLOCKS),
        BeforeValidator(_result, json_schema_input_type=str | list[_ResultPart | OtherFile] | None),
    ] = Field(default_factory=list)
    is_error: bool | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


_PARTS = (
    *(*_READABLE, "thinking", "tool_use", "tool_result"),
    *("redacted_thinking", "tool_addition", "tool_removal", "fallback"),
)
Part = Annotated[
    _Readable | ThinkingPart | HiddenPart | ToolUsePart | ToolResultPart, Field(discriminator="type")
]


_FILES = ("document", "image")
_UnreadFile = Annotated[
    Json,
    WithJsonSchema(
        {
            "type": "object",
            "description": "A file that cannot be read: behind a result, and before the user's last message, "
            "a text stands for it.",
            "properties": {"type": {"not": {"enum": [one for one in _PARTS if one not in _FILES]}}},
        }
    ),
]


class Turn(LenientPart):
    """One message: a text, or parts."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Part],
        Field(max_length=MAX_BLOCKS),
        BeforeValidator(partial(_known, kinds=_PARTS), json_schema_input_type=str | list[Part | _UnreadFile]),
    ]

    def messages(self) -> list[Json]:
        """This turn as messages of the chat API: results of calls are messages of their own there.

        A note about tools and nothing else is no message.
        """
        if (
            self.role != "assistant"
            and self.content
            and all(isinstance(one, HiddenPart) for one in self.content)
        ):
            return []
        found: list[Json] = []
        texts: list[str] = []
        thoughts, calls = "", []
        for part in self.content:
            match part:
                case TextPart() | DocumentPart() | SearchResultPart() | ImagePart():
                    texts.append(part.text)
                case ThinkingPart():
                    thoughts += part.thinking
                case ToolUsePart():
                    function = {"name": part.name, "arguments": json.dumps(part.input, ensure_ascii=False)}
                    calls.append({"id": part.id, "type": "function", "function": function})
                case ToolResultPart():
                    if texts:
                        found.append({"role": self.role, "content": "".join(texts)})
                        texts = []
                    found.append({"role": "tool", "content": part.text, "tool_call_id": part.tool_use_id})
        if texts or thoughts or calls or not found:
            last: Json = {"role": self.role, "content": "".join(texts)}
            if calls:
                last |= {"content": "".join(texts) or None, "tool_calls": calls}
            found.append(last | ({"reasoning_content": thoughts} if thoughts else {}))
        return found


def _with_what_is_known(value: object, info: ValidationInfo) -> object:
    """Messages, with those parts of answers that are known, and of results that can be read.

    Claude Code sends files behind results, too.
    """
    if not isinstance(value, list) or not isinstance(info.context, Ignored):
        return value
    turns, given = [], False
    for turn in value:
        match turn:
            case {"role": "assistant", "content": content}:
                given, turn = False, turn | {"content": _known_parts(content, info.context)}
            case {"content": list(parts)}:
                given = given or any(_is_result(one) for one in parts)
                if given:
                    turn = turn | {"content": [_readable(one, info.context) for one in parts]}
        turns.append(turn)
    return earlier_readable(turns, _earlier, info.context, "messages")


def _known_parts(content: object, ignored: Ignored) -> object:
    """What an answer said. Parts of other types are those of tools that ran on another server, where the
    conversation began: they are left out, and noted."""
    if not isinstance(content, list):
        return content
    found = []
    for part in content:
        match part:
            case {"type": "compaction", "content": str(summary)}:
                found.append({"type": "text", "text": summary})
            case {"type": str(kind)} if kind not in _PARTS:
                ignored.note(f"messages.{kind}")
            case _:
                found.append(part)
    return found


def _earlier(part: Json) -> object:
    """A part of an earlier message. Raises `ValueError` if it cannot be read."""
    if part.get("type") in _FILES:
        return _RESULT_PART.validate_python(part)
    if part.get("type") in _PARTS:
        return part
    raise PydanticCustomError("unsupported_value", "This cannot be read")


def _is_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _readable(part: Any, ignored: Ignored) -> Any:
    match part:
        case {"type": "document" | "image"}:
            return readable_part(part, _RESULT_PART.validate_python, ignored)
        case {"type": "tool_result", "content": list(parts)}:
            return {**part, "content": readable(parts, _RESULT_PART.validate_python, ignored)}
    return part


Turns = Annotated[list[Turn], BeforeValidator(_with_what_is_known, json_schema_input_type=list[Turn])]
