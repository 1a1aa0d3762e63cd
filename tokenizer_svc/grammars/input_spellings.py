"""How a terminal of a client's grammar is spelled within a call: in a JSON string, or as it stands.

The library ends a lexeme before the first byte that it cannot have, and never goes back further. In a JSON
string that is too late: after the text `a` a backslash may begin the `\\t` of the same terminal or the `\\n`
of the next one. So the backslash of a next terminal may be written as the end of this one, and the next one
then goes on after it. In the same way what stands after a whole input may be the end of its last terminal.
"""

from collections.abc import Iterable, Mapping

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.grammar_nodes import (
    EMPTY,
    Alt,
    And,
    Class,
    Facts,
    Name,
    Node,
    Not,
    Repeat,
    Seq,
    Text,
)
from tokenizer_svc.grammars.grammar_rules import GrammarRules, quoted
from tokenizer_svc.grammars.regex_reader import escaped, members, slashed

ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""Characters that a JSON string has after a backslash, and how. Other control characters are not written."""
_PLAIN = r'[^"\\\x00-\x1f\x7f]'
_UNPLAIN = frozenset((*ESCAPES, *map(chr, range(0x20)), "\x7f"))

Ends = tuple[bool, bool]
"""Whether a part's beginning is written before it, and whether the next part's is written as its end."""


class Spelling:
    """The terminals of one grammar as they stand in the text of a call."""

    glue: str
    """What may be written as the end of a terminal although it belongs to what comes next."""
    ends_glued: bool
    """Whether `glue` is the text that stands after a whole input, and may be written as the end of it."""

    def __init__(self, rules: GrammarRules, terminals: Mapping[str, Node]) -> None:
        self._rules, self._terminals = rules, terminals
        self._defined: dict[str, Node] = {}
        self._dead: set[str] = set()
        self._reading: set[str] = set()
        self._names: dict[str, str] = {}
        self._begun: dict[str, Node | None] = {}
        self.facts = Facts(self._defined, members)

    def variants(self, node: Node) -> dict[Ends, str]:
        """What a terminal is in the grammar, by its ends. Raises `GrammarError` if it cannot be spelled."""
        spelled = self.spelled(node)
        if spelled is None:
            raise GrammarError(
                f"a terminal has characters that this model's calls cannot spell{_shown(node)}"
            )
        parts: dict[Ends, list[str]] = {(False, False): [self._added(spelled)]}
        glued = not self.facts.prefix_free(spelled) and self.goes_on(spelled)
        if glued:
            parts[False, True] = [self._added(spelled, self.glue)]
        if (begun := self.begun(spelled)) is not None:
            parts[True, False] = [self._added(begun)]
            if glued:
                parts[True, True] = [self._added(begun, self.glue)]
        if self.facts.nullable(spelled):
            parts.setdefault((True, True), []).append('""')
        return {ends: " | ".join(each) for ends, each in parts.items()}

    def spelled(self, node: Node) -> Node | None:
        """The node with its text as a call has it; None if it cannot have any."""
        match node:
            case Text(text):
                return self.text(text)
            case Class(regex):
                return self.character(regex)
            case Seq(parts):
                found = [each for part in parts if (each := self.spelled(part)) is not None]
                return Seq(tuple(found)) if len(found) == len(parts) else None
            case Alt(parts):
                found = [each for part in parts if (each := self.spelled(part)) is not None]
                return Alt(tuple(found)) if found else None
            case Repeat(part, low, high):
                one = self.spelled(part)
                return Repeat(one, low, high) if one is not None else None if low else EMPTY
            case And(parts):
                found = [each for part in parts if (each := self.spelled(part)) is not None]
                return And(tuple(found)) if len(found) == len(parts) else None
            case Not(part):
                one = self.spelled(part)
                return And((self.anything, Not(one))) if one is not None else self.anything
            case Name(name):
                return node if self._define(name) else None
        raise GrammarError("a rule stands in a terminal")

    def text(self, text: str) -> Node | None:
        raise NotImplementedError

    def character(self, regex: str) -> Node | None:
        raise NotImplementedError

    @property
    def anything(self) -> Node:
        """Any text."""
        return Repeat(self.character("(?s:.)") or EMPTY, 0, None)

    def goes_on(self, node: Node) -> bool:
        """Whether a string of the node may go on with `glue`. To say so of one that may not does no harm."""
        raise NotImplementedError

    def begun(self, node: Node) -> Node | None:
        """What is left of the strings that begin with `glue` once that is written; None if none do."""
        return None

    def within(self, expression: str) -> str:
        """A terminal's expression with what holds for all of them."""
        return expression

    def _define(self, name: str) -> bool:
        """Whether a terminal that has a name has strings."""
        if name not in self._terminals:
            raise GrammarError(f"{name!r} is not defined")
        if name in self._reading:
            raise GrammarError(f"the terminal {name!r} is part of itself")
        if name not in self._defined and name not in self._dead:
            self._reading.add(name)
            node = self.spelled(self._terminals[name])
            self._reading.remove(name)
            if node is None:
                self._dead.add(name)
            else:
                self._defined[name] = node
        return name in self._defined

    def _added(self, node: Node, end: str = "") -> str:
        """A terminal of the grammar."""
        expression = self._expression(node)
        if not self.facts.prefix_free(node):
            expression = self.within(expression)
        if end:
            expression = f"({expression}) {quoted(end)}"
        return self._rules.add(expression, terminal=True)

    def _expression(self, node: Node) -> str:
        if isinstance(node, Text):
            return quoted(node.text)
        if (regex := _regex(node)) is not None:
            return f"/{slashed(regex)}/" if regex else '""'
        match node:
            case Seq(parts):
                return f"({' '.join(map(self._expression, parts))})"
            case Alt(parts):
                return f"({' | '.join(map(self._expression, parts))})"
            case And(parts):
                return f"({' & '.join(map(self._expression, parts))})"
            case Not(part):
                return f"~({self._expression(part)})"
            case Repeat(part, low, high):
                times = f"{{{low},{'' if high is None else high}}}"
                return f"(({self._expression(part)}){times})" if high != 0 else '""'
            case Name(name):
                if name not in self._names:
                    self._names[name] = self._rules.add(self._expression(self._defined[name]), terminal=True)
                return self._names[name]
        raise TypeError(node)


class JsonSpelling(Spelling):
    """In a string of JSON, or of Python, between double quotes. Each character has one spelling."""

    glue, ends_glued = "\\", False

    def text(self, text: str) -> Node | None:
        parts = [f"\\{ESCAPES[each]}" if each in ESCAPES else each for each in text]
        return None if any(each in _UNPLAIN for each in parts) else Text("".join(parts))

    def character(self, regex: str) -> Node | None:
        found = members(regex)
        parts: list[Node] = []
        if found - _UNPLAIN:
            plain = f"(?i:{_both(regex[4:-1])})" if regex.startswith("(?i:") else _both(regex)
            parts.append(Class(plain if regex not in (".", "(?s:.)") else _PLAIN))
        if letters := "".join(ESCAPES[each] for each in sorted(ESCAPES) if each in found):
            parts.append(Seq((Text("\\"), Class(f"[{escaped(letters)}]"))))
        return Alt(tuple(parts), is_character=True) if parts else None

    def goes_on(self, node: Node) -> bool:
        return self.facts.has("\\", node)

    def begun(self, node: Node) -> Node | None:
        match node:
            case Text(text):
                return Text(text[1:]) if text.startswith("\\") else None
            case Seq(parts):
                return _either(self._begun_parts(parts))
            case Alt(parts):
                return _either(map(self.begun, parts))
            case Repeat(part, low, high):
                first = None if high == 0 else self.begun(part)
                if first is None:
                    return None
                return Seq((first, Repeat(part, max(low - 1, 0), None if high is None else high - 1)))
            case And(parts):
                return self._begun_all(parts)
            case Name(name):
                return self._begun_name(name)
        return None

    def _begun_parts(self, parts: tuple[Node, ...]) -> Iterable[Node | None]:
        for index, part in enumerate(parts):
            first = self.begun(part)
            yield None if first is None else Seq((first, *parts[index + 1 :]))
            if not self.facts.nullable(part):
                return

    def _begun_all(self, parts: tuple[Node, ...]) -> Node | None:
        found: list[Node] = []
        for part in parts:
            each = self.begun(part.part if isinstance(part, Not) else part)
            if isinstance(part, Not):
                found += () if each is None else (Not(each),)
            elif each is None:
                return None
            else:
                found.append(each)
        return And(tuple(found))

    def _begun_name(self, name: str) -> Node | None:
        if name not in self._begun:
            self._begun[name] = found = self.begun(self._defined[name])
            if found is not None:
                self._defined[f"{name}\\"] = found
        return None if self._begun[name] is None else Name(f"{name}\\")


class BareSpelling(Spelling):
    """As it stands, up to a mark that it does not have."""

    ends_glued = True

    def __init__(
        self, rules: GrammarRules, terminals: Mapping[str, Node], end: str, marks: Iterable[str], without: str
    ) -> None:
        """`end`: text after an input. `marks`: what no terminal has in it. `without`: a terminal for that."""
        super().__init__(rules, terminals)
        self.glue, self._marks, self._without = end, tuple(marks), without

    def text(self, text: str) -> Node | None:
        return None if any(mark in text for mark in self._marks) else Text(text)

    def character(self, regex: str) -> Node | None:
        return Class(regex)

    def goes_on(self, node: Node) -> bool:
        # Elsewhere the first character of `glue` ends a terminal, and may then begin the next one.
        return bool(self.glue) and self.facts.has(self.glue[0], node)

    def within(self, expression: str) -> str:
        return f"({expression}) & {self._without}"


def _both(regex: str) -> str:
    return f"[{regex}&&{_PLAIN}]"


def _either(found: Iterable[Node | None]) -> Node | None:
    parts = tuple(each for each in found if each is not None)
    return parts[0] if len(parts) == 1 else Alt(parts) if parts else None


def _regex(node: Node) -> str | None:
    """The node as one regular expression; None if it is none."""
    match node:
        case Text(text):
            return escaped(text)
        case Class(regex):
            return regex
        case Seq(parts) | Alt(parts):
            found = [each for part in parts if (each := _regex(part)) is not None]
            if len(found) < len(parts):
                return None
            return "".join(found) if isinstance(node, Seq) else f"(?:{'|'.join(found)})"
        case Repeat(part, low, high):
            one = _regex(part)
            if one is None or high == 0:
                return None if one is None else ""
            return f"(?:{one}){{{low},{'' if high is None else high}}}"
    return None


def _shown(node: Node) -> str:
    return (
        f": {node.text!r}" if isinstance(node, Text) else f": {node.name}" if isinstance(node, Name) else ""
    )
