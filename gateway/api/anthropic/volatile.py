"""A line of the system prompt that each request has anew.

Claude Code begins its system prompt with a line for billing, whose checksum is another one in each request:

    x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;

Cached blocks hold a prompt from its beginning on, so with this line in place no request would find any.
"""

from collections.abc import Sequence
from typing import Any, Literal

HEADER = "x-anthropic-billing-header:"

Volatile = Literal["omit", "last"]
"""What becomes of the line: it is left out, or comes after the last message that is not the assistant's."""


def without_volatile(texts: Sequence[str]) -> tuple[str, str]:
    """The texts of a system prompt, joined, and the volatile line, with which one of them begins.

    Without such a line the second is empty.
    """
    kept, found = [], ""
    for text in texts:
        if text.startswith(HEADER):
            found, _, text = text.partition("\n")
        kept.append(text)
    return "".join(kept), found


def put_last(messages: Sequence[dict[str, Any]], line: str) -> None:
    """Add the line to the end of the last message that is not the assistant's.

    A message of its own would not do: many chat templates take a system message at the beginning alone.
    """
    for message in reversed(messages if line else ()):
        if message["role"] != "assistant":
            message["content"] += f"\n{line}"
            return
