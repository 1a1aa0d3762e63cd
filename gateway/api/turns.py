"""Conversations as chat templates take them.

Many templates take a system message at the beginning alone, and want user and assistant to take turns. Agents
send system messages later, too, and several user's messages in a row.
"""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def in_turns(messages: Iterable[Json]) -> list[Json]:
    """The same conversation, with one system message at most, which comes first.

    A later one is part of what the user says, marked as Claude Code marks such parts. What a user says in
    several messages in a row is one message.
    """
    found: list[Json] = []
    for message in messages:
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            role = "user" if any(one["role"] != "system" for one in found) else "system"
            if role == "user":
                content = f"<system-reminder>\n{content}\n</system-reminder>"
            message = {"role": role, "content": content}
        if found and role == found[-1]["role"] and role in ("system", "user"):
            texts = filter(None, (found[-1]["content"], content))
            found[-1] = {"role": role, "content": "\n\n".join(texts)}
        else:
            found.append(message)
    return found
