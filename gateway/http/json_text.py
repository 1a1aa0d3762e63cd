"""JSON as clients and models write it."""

import json
from typing import Any

from pydantic_core import from_json


def value_of(raw: bytes) -> Any:
    """The value of a JSON text, with whole characters. Raises `ValueError`."""
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        try:
            value = json.loads(raw.decode())  # takes halves of characters
        except (ValueError, RecursionError):
            raise error from None
        return from_json(whole(json.dumps(value, ensure_ascii=False)), allow_inf_nan=False)


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a character (a lone surrogate), which no message can carry.

    JavaScript counts halves and may cut a text between two; JSON can spell them.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
