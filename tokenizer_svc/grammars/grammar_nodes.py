"""What grammars of texts are made of: nodes of rules and of terminals, and what these match.

A terminal is a regular expression: nodes other than `Terminal`. A rule has terminals, and names of rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """This very text."""

    text: str


@dataclass(frozen=True)
class Class:
    """One character of a class."""

    regex: str
    """A regular expression that matches one character, in the syntax of Rust's crate `regex`."""


@dataclass(frozen=True)
class Seq:
    """One part after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Alt:
    """One of the parts."""

    parts: "tuple[Node, ...]"
    is_character: bool = False
    """The parts are spellings of single characters, none of which another one begins with."""


@dataclass(frozen=True)
class Repeat:
    """A part several times."""

    part: "Node"
    low: int
    high: int | None
    """None: any number of times."""


@dataclass(frozen=True)
class And:
    """What all parts match; of terminals alone."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Not:
    """What the part does not match; of terminals alone."""

    part: "Node"


@dataclass(frozen=True)
class Name:
    """A rule or terminal that has a name."""

    name: str


@dataclass(frozen=True)
class Terminal:
    """A terminal without a name, within a rule."""

    node: "Node"


Node = Text | Class | Seq | Alt | Repeat | And | Not | Name | Terminal
EMPTY = Text("")


@dataclass
class Facts:
    """What is known of terminals' strings. Answers about names are kept."""

    defined: Mapping[str, Node]
    """The terminals that names stand for."""
    members: Callable[[str], frozenset[str]]
    """The ASCII characters that a class matches."""
    _kept: dict[tuple[str, str], bool] = field(default_factory=dict)

    def nullable(self, node: Node) -> bool:
        """Whether the empty string is among them."""
        match node:
            case Text(text):
                return not text
            case Seq(parts) | And(parts):
                return all(map(self.nullable, parts))
            case Alt(parts):
                return any(map(self.nullable, parts))
            case Repeat(part, low, _):
                return low == 0 or self.nullable(part)
            case Not(part):
                return not self.nullable(part)
        return self._named("nullable", node, self.nullable)

    def prefix_free(self, node: Node) -> bool:
        """Whether surely none of them begins with another one."""
        match node:
            case Text() | Class():
                return True
            case Seq(parts):
                return all(map(self.prefix_free, parts))
            case Alt(parts, is_character):
                return is_character or (len(parts) == 1 and self.prefix_free(parts[0]))
            case Repeat(part, low, high):
                return low == high and self.prefix_free(part)
            case And(parts):
                return any(map(self.prefix_free, parts))
        return self._named("prefix_free", node, self.prefix_free)

    def has(self, text: str, node: Node) -> bool:
        """Whether a part of the node has the text in it. The text is an ASCII character."""
        match node:
            case Class(regex):
                return text in self.members(regex)
            case Text(literal):
                return text in literal
            case Seq(parts) | Alt(parts) | And(parts):
                return any(self.has(text, part) for part in parts)
            case Repeat(part) | Not(part):
                return self.has(text, part)
        return self._named(f"has {text}", node, lambda each: self.has(text, each))

    def _named(self, question: str, node: Node, ask: Callable[[Node], bool]) -> bool:
        if not isinstance(node, Name):
            return False
        key = (question, node.name)
        if key not in self._kept:
            self._kept[key] = ask(self.defined[node.name])
        return self._kept[key]
