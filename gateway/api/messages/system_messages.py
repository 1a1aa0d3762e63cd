"""Conversations whose later system messages stay in their places.

Some chat templates move all system messages to the beginning. Agents send new ones all the time, and each
would keep the rest of the prompt out of the prefix cache.
"""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]

_SYSTEMS = ("system", "developer")


def in_place(messages: Iterable[Json]) -> list[Json]:
    """The conversation, whose later system messages are the user's, marked as Claude Code marks such."""
    found: list[Json] = []
    begun = False
    for message in messages:
        begun = begun or message["role"] not in _SYSTEMS
        if begun and message["role"] in _SYSTEMS:
            content = f"<system-reminder>\n{message['content']}\n</system-reminder>"
            message = {"role": "user", "content": content}
        found.append(message)
    return found
