"""Grammars in the library's dialect of Lark: their rules and how texts are spelled in them."""

import json
from dataclasses import dataclass, field

ANY = "/(?s:.*)/"
"""Any text."""


@dataclass
class GrammarRules:
    """The rules of one grammar."""

    lines: list[str] = field(default_factory=list)

    def add(self, body: str, terminal: bool = False) -> str:
        """A new rule; returns its name."""
        name = f"{'T' if terminal else 'r'}{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def declare(self) -> int:
        """Place for a rule that is needed before it is known: `set` gives its body."""
        self.lines.append("")
        return len(self.lines) - 1

    def set(self, place: int, body: str) -> None:
        self.lines[place] = f"r{place}: {body}"


def quoted(text: str) -> str:
    """A text as the grammar spells it. The library takes no U+007F that is not escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
