"""JSON as clients and models write it."""

import re
from typing import Any

from pydantic_core import from_json, to_json

_HEX = rb"[\da-fA-F]{2}"
# A pair of halves, which is a character, or one half. All begin alike: the rest of a text is passed fast.
_HALVES = re.compile(
    rb"\\u[dD](?:[89abAB]" + _HEX + rb"(?P<pair>\\u[dD][c-fC-F]" + _HEX + rb")?|[c-fC-F]" + _HEX + rb")"
)
MAX_HALVES = 2**20
"""Halves and pairs of them in a text that is mended: more than there are characters in any prompt."""

_MARK = "\ufeff".encode()
"""With it editors of Windows begin a text (RFC 8259, section 8.1)."""


def value_of(raw: bytes) -> Any:
    """The value of a JSON text, with U+FFFD for each half of a character. Raises `ValueError`."""
    raw = raw.removeprefix(_MARK)
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError:
        if (mended := _mended(raw)) is None:
            raise
        return from_json(mended, allow_inf_nan=False)


def _mended(raw: bytes) -> bytes | None:
    """The text with U+FFFD for each half; None if it has none, or too many."""
    parts: list[bytes] = []
    end = place = 0
    for _ in range(MAX_HALVES + 1):
        if (found := _HALVES.search(raw, place)) is None:
            return b"".join([*parts, raw[end:]]) if parts else None
        before = raw[place : found.start()]
        if (len(before) - len(before.rstrip(b"\\"))) % 2:  # a backslash that is escaped, and a "u"
            place = found.start() + 2
            continue
        place = found.end()
        if found["pair"] is None:
            parts += [raw[end : found.start()], b"\\ufffd"]
            end = place
    return None


def text_of(value: Any) -> bytes:
    """The JSON text of a value that `value_of` gave. One with an infinite number is invalid."""
    return to_json(value, inf_nan_mode="constants")


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a character (a lone surrogate), which no message can carry.

    JavaScript counts halves and may cut a text between two; JSON can spell them.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
