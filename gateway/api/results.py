"""What tools give. It stays in the conversation, which a refusal would end."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from gateway.api.ignored import Ignored
from gateway.api.images import UNSEEN

UNREAD = "[a file, which this model cannot read]"

_TEXTS = ("text", "input_text", "output_text", "refusal")
_IMAGES = ("image", "image_url", "input_image")
OtherFile = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "description": "Another file, or one that cannot be read: a text stands for it.",
            "properties": {"type": {"not": {"enum": list(_TEXTS)}}},
        }
    ),
]
"""What a result may have besides what can be read."""


def readable(parts: object, read: Callable[[dict[str, Any]], object], context: object) -> object:
    """Parts of a result, each as `readable_part` makes it.

    `context`: where parts are noted; if it is no `Ignored`, they are given back as they are, to be refused.
    """
    if not (isinstance(parts, list) and isinstance(context, Ignored)):
        return parts
    return [readable_part(part, read, context) for part in parts]


def readable_part(part: object, read: Callable[[dict[str, Any]], object], ignored: Ignored) -> object:
    """A part as `read` makes it; a text as it is. If `read` raises `ValueError`, a text stands for the part,
    which is noted."""
    if not isinstance(part, dict) or part.get("type") in _TEXTS:
        return part
    try:
        return read(part)
    except ValueError:
        image = part.get("type") in _IMAGES
        ignored.note("tool_result.image" if image else "tool_result.file")
        return {"type": "text", "text": UNSEEN if image else UNREAD}
