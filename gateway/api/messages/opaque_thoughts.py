"""Thoughts as texts that clients keep and send back unread: `encrypted_content` of the Responses API.

Nothing is secret in them: whoever may have the thought itself has it in the same answer.
"""

import base64

_MARK = "quire:"
"""Begins each of them. Those of other servers begin otherwise."""


def opaque(thought: str) -> str:
    """The text that stands for `thought`."""
    return _MARK + base64.b64encode(thought.encode()).decode()


def thought_of(text: str) -> str:
    """The thought that `text` stands for; "" if it is another server's or damaged."""
    if not text.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(text[len(_MARK) :], validate=True).decode()
    except ValueError:
        return ""
