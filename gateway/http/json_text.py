"""JSON as clients and models write it."""

import re
from typing import Any

from pydantic_core import from_json

# Behind an even number of backslashes: a pair of halves, which is a character, or one half.
_HALVES = re.compile(
    rb"(?<!\\)(?P<before>(?:\\\\)*+)"
    rb"(?:\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][\da-fA-F]{2}))"
)


_MARK = "\ufeff".encode()
"""With it editors of Windows begin a text (RFC 8259, section 8.1)."""


def value_of(raw: bytes) -> Any:
    """The value of a JSON text, with U+FFFD for each half of a character. Raises `ValueError`."""
    raw = raw.removeprefix(_MARK)
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError:
        fixed = _HALVES.sub(lambda found: found["before"] + b"\\ufffd" if found["half"] else found[0], raw)
        if fixed == raw:
            raise
        return from_json(fixed, allow_inf_nan=False)


def whole(text: str) -> str:
    """The text with U+FFFD for each half of a character (a lone surrogate), which no message can carry.

    JavaScript counts halves and may cut a text between two; JSON can spell them.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
