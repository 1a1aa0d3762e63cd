"""Files that are attached to messages. One that is a text is read as such."""

import re
from binascii import a2b_base64
from typing import Any

from pydantic_core import PydanticCustomError

Json = dict[str, Any]

FILE_PARTS = ("file", "input_file")
"""Types of parts that are files: of the chat API and of the Responses API."""
_SPACE = b" \t\r\n\v\f"
_TEXT = re.compile(r"data:text/[^,]*;base64", re.IGNORECASE)
_FILE: Json = {
    "type": "object",
    "properties": {
        "file_data": {
            "type": "string",
            "pattern": "^[dD][aA][tT][aA]:[tT][eE][xX][tT]/[^,]*;[bB][aA][sS][eE]64,",
            "description": "A text as a `data:` URL with base64 of UTF-8.",
        },
        "filename": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["file_data"],
}
FILE_SCHEMAS: tuple[Json, ...] = (
    {
        "type": "object",
        "properties": {"type": {"const": "file"}, "file": _FILE},
        "required": ["type", "file"],
    },
    _FILE
    | {
        "properties": {"type": {"const": "input_file"}, **_FILE["properties"]},
        "required": ["type", "file_data"],
    },
)
"""The JSON Schemas of these parts."""


def file_as_text(part: Json) -> Json:
    """A file as a text part of either API. Raises `PydanticCustomError` for one that is no text."""
    match part.get("file") if part.get("type") == "file" else part:
        case {"file_data": str(data), **file}:
            head, _, encoded = data.partition(",")
            if _TEXT.fullmatch(head):
                return {"type": "text", "text": paragraphs(file.get("filename"), _text(encoded))}
    message = "Of files only texts are read, as a data: URL of a type text/... with base64"
    raise PydanticCustomError("unsupported_value", message)


def paragraphs(*texts: object) -> str:
    """One text of all that are texts and not empty, with an empty line behind each."""
    return "".join(f"{text}\n\n" for text in texts if isinstance(text, str) and text)


def decoded(encoded: str) -> bytes:
    """What a text of base64 stands for. Some encoders put in white space, or leave out the padding.

    Raises `ValueError`.
    """
    try:
        return a2b_base64(encoded, strict_mode=True)
    except ValueError:
        # Not `split`: a text of a space behind each letter becomes millions of texts.
        raw = encoded.encode("ascii").translate(None, _SPACE)
        return a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)


def _text(encoded: str) -> str:
    try:
        return decoded(encoded).decode("utf-8-sig")
    except ValueError:
        raise PydanticCustomError("unsupported_value", "A file of text is base64 of UTF-8") from None
