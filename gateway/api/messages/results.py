"""What tools give, and what a user gave earlier. It stays in the conversation, which a refusal would end."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from gateway.api.common.ignored import Ignored
from gateway.api.messages.images import UNSEEN

UNREAD = "[a file, which this model cannot read]"

_TEXTS = ("text", "input_text", "output_text", "refusal")
_IMAGES = ("image", "image_url", "input_image")
OTHER_FILE: dict[str, Any] = {
    "type": "object",
    "description": "Another file, or one that cannot be read: in a result, and before the user's last "
    "message, a text stands for it.",
    "properties": {"type": {"not": {"enum": list(_TEXTS)}}},
}
OtherFile = Annotated[dict[str, Any], WithJsonSchema(OTHER_FILE)]
"""What a result may have besides what can be read."""


def readable(parts: object, read: Callable[[dict[str, Any]], object], context: object) -> object:
    """Parts of a result, each as `readable_part` makes it.

    `context`: where parts are noted; if it is no `Ignored`, they are given back as they are, to be refused.
    """
    if not (isinstance(parts, list) and isinstance(context, Ignored)):
        return parts
    return [readable_part(part, read, context) for part in parts]


def earlier_readable(
    messages: object, read: Callable[[dict[str, Any]], object], context: object, place: str
) -> object:
    """Messages, with the parts before the user's last message as `readable_part` makes them.

    Where the user gives something that cannot be read, the request is refused: it would be with every later
    message, too. `context`: as for `readable`. `place`: where the parts are, for notes.
    """
    if not (isinstance(messages, list) and isinstance(context, Ignored)):
        return messages
    roles = [one.get("role") if isinstance(one, dict) else None for one in messages]
    last = max((number for number, role in enumerate(roles) if role == "user"), default=0)
    return [
        {**one, "content": [readable_part(part, read, context, place) for part in one["content"]]}
        if role not in (None, "tool") and isinstance(one.get("content"), list)
        else one
        for role, one in zip(roles[:last], messages, strict=False)
    ] + messages[last:]


def readable_part(
    part: object, read: Callable[[dict[str, Any]], object], ignored: Ignored, place: str = "tool_result"
) -> object:
    """A part as `read` makes it; a text as it is. If `read` raises `ValueError`, a text stands for the part,
    which is noted."""
    if not isinstance(part, dict) or part.get("type") in _TEXTS:
        return part
    try:
        return read(part)
    except ValueError:
        image = part.get("type") in _IMAGES
        ignored.note(f"{place}.image" if image else f"{place}.file")
        return {"type": "text", "text": UNSEEN if image else UNREAD}
