"""Images within the text of a message.

In the gateway the content of a message is one string. An image in it is its data URL between two control
characters. So it keeps its place when the string is cut or joined with others. `taken_out` takes the images
out of the string when a request goes to the tokenizer service. If a client writes these characters in a text,
what is between them counts as an image.
"""

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pydantic_core import PydanticCustomError

from gateway.api.messages.attached import decoded
from gateway.errors import BadRequest
from gateway.http.body_memory import MAX_BODY_BYTES
from gateway.upstream.images import Images
from ops.runtime.image_store import MAX_IMAGE_BYTES, MAX_IMAGES, image_file
from proto.tokenizer_pb2 import ChatMessage, TextRequest

UNSEEN = "[an image, which this model cannot see]"
EARLIER = "[an earlier image, which is left out]"
LEFT_OUT_AT_ONCE = 16
"""Earlier images are left out in such numbers. So the beginning of a conversation that goes on, which is
cached, does not change with each image."""
DETAILS = ("auto", "low", "high", "original")
"""How much of an image the model should see. `low` reduces it; between the others nothing differs."""

# A text in which no character is beyond Latin-1 takes one byte for each, so these must not be, either.
_BEGIN, _END = "\x02data:image;detail=", "\x03"
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")

_URL = {
    "type": "string",
    "pattern": "^[dD][aA][tT][aA]:",
    "description": "A PNG, JPEG, WebP or GIF file as a `data:` URL with base64.",
}
_DETAIL = {"enum": [*DETAILS, None], "description": "`low`: the model may see it coarsely."}
IMAGE_PART: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "anyOf": [
                _URL,
                {"type": "object", "properties": {"url": _URL, "detail": _DETAIL}, "required": ["url"]},
            ]
        },
    },
    "required": ["type", "image_url"],
}
"""The JSON Schema of a part of the chat API."""


def from_part(part: dict[str, Any]) -> str:
    """The image of a part of the chat API as text. Raises `PydanticCustomError`."""
    image = part.get("image_url")
    if isinstance(image, dict):
        return from_url(image.get("url"), image.get("detail"))
    return from_url(image, part.get("detail"))


def image_as_text(part: dict[str, Any]) -> dict[str, Any]:
    """An image of the chat API as a text part. Raises `PydanticCustomError`, for other parts, too."""
    if part.get("type") != "image_url":
        raise PydanticCustomError("unsupported_value", "This is no image")
    return {"type": "text", "text": from_part(part)}


def from_url(url: object, detail: object = None) -> str:
    """The image of a data URL as text. Raises `PydanticCustomError`."""
    if not isinstance(url, str):
        raise PydanticCustomError("unsupported_value", "An image is sent as a data: URL")
    head, comma, data = url.partition(",")
    head = head[:256].strip().lower()
    if head.startswith(("http:", "https:")):
        raise PydanticCustomError(
            "unsupported_value", "Images are sent as data: URLs, as this server fetches none"
        )
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise PydanticCustomError("unsupported_value", "An image is sent as a data: URL with base64")
    return from_base64(data, detail)


def from_base64(data: str, detail: object = None) -> str:
    """The image of a file in base64 as text. Raises `PydanticCustomError`."""
    if detail is not None and detail not in DETAILS:
        raise PydanticCustomError("unsupported_value", f"'detail' is one of {', '.join(DETAILS)}")
    try:
        _decoded(data)
    except ValueError as error:
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": str(error)}) from None
    return as_text(data, detail)


def as_text(data: str, detail: object = None) -> str:
    """The image of a file in base64, which was checked, as text."""
    return f"{_BEGIN}{detail or 'auto'};base64,{data}{_END}"


def has_image(text: str | None) -> bool:
    """Whether there is an image in a text, or the beginning of one."""
    return text is not None and _BEGIN[0] in text and _BEGIN in text  # to look for one character is faster


async def taken_out(requests: Sequence[TextRequest]) -> Images:
    """The images in the messages of requests. The messages have their names instead.

    Raises `BadRequest`.
    """
    return await asyncio.to_thread(_take_out, [each for one in requests for each in one.chat.messages])


async def left_out(requests: Sequence[TextRequest], seeing: bool) -> bool:
    """Put a text in the place of images that tools have given. Whether there were any.

    `seeing`: the model sees images. Then the oldest are left out, if there are more than a request may have;
    otherwise all. What a tool has given stays in the conversation, and would end it. Clients whose API has
    results that are texts alone send the images behind the results.
    """
    messages = [each for one in requests for each in one.chat.messages]
    return await asyncio.to_thread(_leave_out, messages, seeing)


def _leave_out(messages: Sequence[ChatMessage], seeing: bool) -> bool:
    count, instead = _count(messages), UNSEEN
    if seeing:
        beyond, instead = count - MAX_IMAGES, EARLIER
        count = -(-beyond // LEFT_OUT_AT_ONCE) * LEFT_OUT_AT_ONCE
    left, given = count, False
    for message in messages:
        given = message.role == "tool" or (given and message.role == "user")
        if given and left > 0 and has_image(message.content):
            content, *spelled = message.content.split(_BEGIN)
            for each in spelled:
                _, end, rest = each.partition(_END)
                content += instead + rest if end and left > 0 else _BEGIN + each
                left -= 1
            message.content = content
    return left < count


def _count(messages: Iterable[ChatMessage]) -> int:
    """How many images there are."""
    return sum(message.content.count(_BEGIN) for message in messages)


def _take_out(messages: Sequence[ChatMessage]) -> Images:
    if (count := _count(messages)) > MAX_IMAGES:
        _refuse(
            f"A request has at most {MAX_IMAGES} images, and this one has {count} in all its messages: "
            "leave out some, such as the oldest."
        )
    prefix, images, size = uuid.uuid4().hex, dict[str, bytes](), 0
    for message in messages:
        content, *spelled = message.content.split(_BEGIN)
        for each in spelled:
            image, detail, rest = _read(each)
            size += len(image)
            if size > MAX_BODY_BYTES:
                _refuse(f"The images of a request have at most {MAX_BODY_BYTES // 2**20} MiB.")
            file = image_file(f"{prefix}-{len(images)}", image)
            images[file.name] = image
            message.images.add(file=file, offset=len(content), low_detail=detail == "low")
            content += rest
        if spelled:
            message.content = content
    return images


def _read(text: str) -> tuple[bytes, str, str]:
    """The image whose beginning was before a text; its detail; and the rest of the text."""
    spelled, end, rest = text.partition(_END)
    detail, mark, data = spelled.partition(";base64,")
    if not (end and mark and detail in DETAILS):
        _refuse("A text has the beginning of an image, and no image.")
    try:
        return _decoded(data), detail, rest
    except ValueError as error:
        _refuse(f"{error}.")


def _decoded(data: str) -> bytes:
    """A file in base64. Raises `ValueError` for what is no image, or too large."""
    try:
        image = decoded(data)
    except ValueError:
        raise ValueError("The image is not valid base64") from None
    if not (image.startswith(_MAGIC) or (image[:4] == b"RIFF" and image[8:12] == b"WEBP")):
        raise ValueError("Images are PNG, JPEG, WebP or GIF files, and this is none")
    if len(image) > MAX_IMAGE_BYTES:
        raise ValueError(f"An image has at most {MAX_IMAGE_BYTES // 2**20} MiB")
    return image


def _refuse(message: str) -> NoReturn:
    raise BadRequest(message, param="messages", code="invalid_value")
