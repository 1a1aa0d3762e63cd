"""Images within the text of a message.

In the gateway the content of a message is one string. An image in it is its data URL, or its address,
between two control characters. So it keeps its place when the string is cut or joined with others.
`taken_out` takes the images out of the string when a request goes to the tokenizer service. If a client
writes these characters in a text, what is between them counts as an image.
"""

import asyncio
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pydantic_core import PydanticCustomError

from gateway.api.messages.attached import decoded
from gateway.errors import BadRequest
from gateway.http.body_memory import MAX_BODY_BYTES
from gateway.upstream.images import NO_IMAGES, Images
from ops.runtime.image_store import MAX_IMAGE_BYTES, MAX_IMAGES, image_file
from proto.tokenizer_pb2 import ChatMessage, TextRequest

UNSEEN = "[an image, which this model cannot see]"
EARLIER = "[an earlier image, which is left out]"
LEFT_OUT_AT_ONCE = 16
"""Earlier images are left out in such numbers. So the beginning of a conversation that goes on, which is
cached, does not change with each image."""
DETAILS = ("auto", "low", "high", "original")
"""How much of an image the model should see. `low` reduces it; between the others nothing differs."""

MAX_ADDRESS = 4096
"""Characters of an address."""

# A text in which no character is beyond Latin-1 takes one byte for each, so these must not be, either.
_BEGIN, _END = "\x02data:image;detail=", "\x03"
_AT = ";at,"
"""Between an image's detail and its address."""
# No address has the first character of a beginning: many beginnings alone would each be read to the end.
_ADDRESS = re.compile(f"{_BEGIN}(?:{'|'.join(DETAILS)}){_AT}([^{_BEGIN[0]}{_END}]*){_END}")
_MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")

IMAGE_URL: dict[str, Any] = {
    "type": "string",
    "pattern": "^([dD][aA][tT][aA]|[hH][tT][tT][pP][sS]?):",
    "description": "A PNG, JPEG, WebP or GIF file as a `data:` URL with base64, or its address at a host "
    "that the operator allows.",
}
"""The JSON Schema of an image's URL."""
_DETAIL = {"enum": [*DETAILS, None], "description": "`low`: the model may see it coarsely."}
IMAGE_PART: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "anyOf": [
                IMAGE_URL,
                {"type": "object", "properties": {"url": IMAGE_URL, "detail": _DETAIL}, "required": ["url"]},
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
    """The image of a URL as text. Raises `PydanticCustomError`."""
    if not isinstance(url, str):
        raise PydanticCustomError("unsupported_value", "An image is sent as a URL")
    head, comma, data = url.partition(",")
    head = head[:256].strip().lower()
    if head.startswith(("http:", "https:")):
        return _from_address(url.strip(), detail)
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise PydanticCustomError("unsupported_value", "An image is sent as a data: URL with base64")
    return from_base64(data, detail)


def _from_address(url: str, detail: object) -> str:
    _check_detail(detail)
    if len(url) > MAX_ADDRESS or any(each <= " " or each == "\x7f" for each in url):
        message = f"An image's address has at most {MAX_ADDRESS} characters, and no white space"
        raise PydanticCustomError("unsupported_value", message)
    return f"{_BEGIN}{detail or 'auto'}{_AT}{url}{_END}"


def from_base64(data: str, detail: object = None) -> str:
    """The image of a file in base64 as text. Raises `PydanticCustomError`."""
    _check_detail(detail)
    try:
        _decoded(data)
    except ValueError as error:
        raise PydanticCustomError("unsupported_value", "{reason}", {"reason": str(error)}) from None
    return as_text(data, detail)


def _check_detail(detail: object) -> None:
    if detail is not None and detail not in DETAILS:
        raise PydanticCustomError("unsupported_value", f"'detail' is one of {', '.join(DETAILS)}")


def as_text(data: str, detail: object = None) -> str:
    """The image of a file in base64, which was checked, as text."""
    return f"{_BEGIN}{detail or 'auto'};base64,{data}{_END}"


def has_image(text: str | None) -> bool:
    """Whether there is an image in a text, or the beginning of one."""
    return text is not None and _BEGIN[0] in text and _BEGIN in text  # to look for one character is faster


async def taken_out(requests: Sequence[TextRequest], fetched: Images = NO_IMAGES) -> Images:
    """The images in the messages of requests. The messages have their names instead.

    `fetched`: those at addresses. Raises `BadRequest`.
    """
    return await asyncio.to_thread(_take_out, _messages(requests), fetched)


async def addresses(requests: Sequence[TextRequest]) -> list[str]:
    """The addresses of images in the messages of requests, each once. Raises `BadRequest` for too many."""

    def found() -> list[str]:
        messages = _messages(requests)
        _check_count(messages)
        return _addresses(messages)

    return await asyncio.to_thread(found)


def _addresses(messages: Sequence[ChatMessage]) -> list[str]:
    texts = (message.content for message in messages if _AT in message.content)  # to look for that is faster
    return list(dict.fromkeys(found for text in texts for found in _ADDRESS.findall(text)))


def left_unfetched(requests: Sequence[TextRequest], why: Mapping[str, str], *, strict: bool) -> set[str]:
    """Put a text in the place of images that were not fetched. Returns where these were, for notes.

    `why`: the reasons, by address. Raises `BadRequest` for one in the user's last message: earlier ones stay
    in the conversation, which a refusal would end. `strict`: for all.
    """
    found = set[str]()
    for one in requests:
        roles = [message.role for message in one.chat.messages]
        last = max((number for number, role in enumerate(roles) if role == "user"), default=0)
        given = False
        for number, message in enumerate(one.chat.messages):
            given = message.role == "tool" or (given and message.role == "user")
            missing = [each for each in _addresses([message]) if each in why]
            if not missing:
                continue
            if strict or (number >= last and not given):
                _refuse(
                    f"The image at '{missing[0][:200]}' is not read: {why[missing[0]]}. "
                    "Images may be sent as data: URLs.",
                    "invalid_image_url",
                )
            found.add("tool_result.image" if given else "messages.image")
            message.content = _ADDRESS.sub(
                lambda spelled: UNSEEN if spelled[1] in why else spelled[0], message.content
            )
    return found


def _messages(requests: Sequence[TextRequest]) -> list[ChatMessage]:
    return [each for one in requests for each in one.chat.messages]


async def left_out(requests: Sequence[TextRequest], seeing: bool) -> bool:
    """Put a text in the place of images that tools have given. Whether there were any.

    `seeing`: the model sees images. Then the oldest are left out, if there are more than a request may have;
    otherwise all. What a tool has given stays in the conversation, and would end it. Clients whose API has
    results that are texts alone send the images behind the results.
    """
    return await asyncio.to_thread(_leave_out, _messages(requests), seeing)


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


def _check_count(messages: Sequence[ChatMessage]) -> None:
    if (count := _count(messages)) > MAX_IMAGES:
        _refuse(
            f"A request has at most {MAX_IMAGES} images, and this one has {count} in all its messages: "
            "leave out some, such as the oldest."
        )


def _take_out(messages: Sequence[ChatMessage], fetched: Images) -> Images:
    _check_count(messages)
    prefix, images, size = uuid.uuid4().hex, dict[str, bytes](), 0
    for message in messages:
        content, *spelled = message.content.split(_BEGIN)
        for each in spelled:
            image, detail, rest = _read(each, fetched)
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


def _read(text: str, fetched: Images) -> tuple[bytes, str, str]:
    """The image whose beginning was before a text; its detail; and the rest of the text."""
    spelled, end, rest = text.partition(_END)
    detail, mark, data = spelled.partition(";base64,")
    if not mark:
        detail, mark, data = spelled.partition(_AT)
    if not (end and mark and detail in DETAILS) or (mark == _AT and data not in fetched):
        _refuse("A text has the beginning of an image, and no image.")
    if mark == _AT:
        return fetched[data], detail, rest
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
    check_image(image)
    return image


def check_image(image: bytes) -> None:
    """Raises `ValueError` for a file that is no image, or too large."""
    if not (image.startswith(_MAGIC) or (image[:4] == b"RIFF" and image[8:12] == b"WEBP")):
        raise ValueError("Images are PNG, JPEG, WebP or GIF files, and this is none")
    if len(image) > MAX_IMAGE_BYTES:
        raise ValueError(f"An image has at most {MAX_IMAGE_BYTES // 2**20} MiB")


def _refuse(message: str, code: str = "invalid_value") -> NoReturn:
    raise BadRequest(message, param="messages", code=code)
