"""Regular expressions in the syntax of Rust's crate `regex`, as nodes.

Only their structure is read. What a class of characters matches, the library knows: see `members`.
"""

import functools
import re
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from ops.model_directory.grammars import LIMITS, GrammarError, fault_of
from tokenizer_svc.grammars.grammar_nodes import EMPTY, Alt, Class, Name, Node, Repeat, Seq, Text

_BEGIN, _END = Name("^"), Name("$")
"""Anchors, until they are left out at the ends of a whole expression."""
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_NAME = re.compile(r"\?P?<[A-Za-z_][\w.\[\]]*>")
_TIMES = re.compile(r"\{(\d+)(,(\d*))?\}")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xuU]\{([0-9A-Fa-f]{1,8})\}")
_PROPERTY = re.compile(r"[pP](?:\{[^}]*\}|[A-Za-z])")
_PARTS = re.compile(r"\\(?P<escaped>.)|(?P<open>\[\^?\]?)|(?P<close>\])|(?P<dash>-)", re.DOTALL)
_DIGITS = {"d": "[0-9]", "D": "[^0-9]"}


def read_regex(text: str, flags: str = "") -> Node:
    """The nodes of an expression that matches a whole text. `flags`: those that hold from its beginning.

    Anchors may stand at its ends. Raises `GrammarError` for what no terminal can have.
    """
    regex = plain_digits(text)
    reader = _Reader(regex, _Flags().with_(flags, ""))
    node = reader.alternatives()
    if reader.place < len(regex):
        raise GrammarError(f"the regex {text[:64]!r} has an unopened group")
    return _without_anchors(node, True, True)


@functools.lru_cache(maxsize=4096)
def members(regex: str) -> frozenset[str]:
    """The characters below U+0080 that a class matches, and "\x80" if it matches others.

    Raises `GrammarError` if it is no class.
    """
    return first_characters(f"start: /{slashed(regex)}/")


def first_characters(grammar: str) -> frozenset[str]:
    """The characters below U+0080 that a text of a grammar in Lark may begin with, and "\x80" if there are
    others. Raises `GrammarError`.
    """
    allowed = int.from_bytes(_matcher(grammar).compute_bitmask(), "little")
    found = {chr(each) for each in range(0x80) if allowed >> each & 1}
    return frozenset(found | ({"\x80"} if allowed >> 0x80 & (1 << 0x80) - 1 else set()))


def may_be_empty(expression: str) -> bool:
    """Whether the empty text follows an expression of a grammar in Lark. Raises `GrammarError`."""
    return bool(_matcher(f"start: {expression}").is_accepting())


def plain_digits(regex: str) -> str:
    r"""The expression with `\d` for 0 to 9, as in JSON Schema. To the library it is a digit of any script."""
    parts: list[str] = []
    depth = opened = at = 0
    ends = -1
    """Where the end of a range of characters stands, which no class can be: the library refuses one."""
    for found in _PARTS.finditer(regex):
        if found["open"]:
            depth, opened = depth + 1, found.end()
        elif found["close"]:
            depth = max(0, depth - 1)
        elif found["dash"]:
            if depth and opened < found.start() and regex[found.start() - 1] != "-":
                ends = found.end()
        elif found["escaped"] in _DIGITS and found.start() != ends:
            parts += (regex[at : found.start()], _DIGITS[found["escaped"]])
            at = found.end()
    return "".join((*parts, regex[at:]))


def slashed(regex: str) -> str:
    """An expression as it stands between slashes."""
    escaped, text = False, []
    for character in regex:
        text.append(
            {"/": "/" if escaped else r"\/", "\n": "n" if escaped else r"\n"}.get(character, character)
        )
        escaped = character == "\\" and not escaped
    return "".join(text)


def escaped(text: str) -> str:
    """An expression that matches this text alone."""
    return "".join(f"\\x{{{ord(each):x}}}" if each in "\n\r\t\x7f" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r"\.+*?()|[]{}^$#&-~/" else character


def _matcher(grammar: str) -> LLMatcher:
    matcher = LLMatcher(_bytes(), f"%llguidance {{}}\n{grammar}", log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise fault_of(matcher)
    return matcher


@functools.cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


@dataclass(frozen=True)
class _Flags:
    any_case: bool = False
    dot_all: bool = False

    def with_(self, on: str, off: str) -> "_Flags":
        for flag in on + off:
            if flag not in "isu" or (flag == "u" and flag in off):
                raise GrammarError(f"the flag {flag!r} of a regex is not supported")
        return _Flags(
            (self.any_case or "i" in on) and "i" not in off, (self.dot_all or "s" in on) and "s" not in off
        )


class _Reader:
    def __init__(self, text: str, flags: _Flags) -> None:
        self._text, self._flags = text, flags
        self.place = 0

    def alternatives(self) -> Node:
        """What stands up to the end of the group; the flags that it sets end with it."""
        outer, parts = self._flags, [self._sequence()]
        while self._next("|"):
            parts.append(self._sequence())
        self._flags = outer
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self.place < len(self._text) and self._text[self.place] not in "|)":
            part = self._repeated(self._atom())
            if isinstance(part, Text) and parts and isinstance(parts[-1], Text):
                part = Text(parts.pop().text + part.text)  # type: ignore[union-attr]
            parts.append(part)
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        while True:
            if self._next("*"):
                atom = Repeat(atom, 0, None)
            elif self._next("+"):
                atom = Repeat(atom, 1, None)
            elif self._next("?"):
                atom = Repeat(atom, 0, 1)
            elif (found := _TIMES.match(self._text, self.place)) is not None:
                self.place = found.end()
                low = int(found[1])
                atom = Repeat(atom, low, (int(found[3]) if found[3] else None) if found[2] else low)
                if atom.high is not None and atom.high < low:
                    raise GrammarError(f"a regex repeats {found[0]} times")
            else:
                return atom
            self._next("?")  # which of the matches a search prefers does not matter to a whole text

    def _atom(self) -> Node:
        character = self._text[self.place]
        self.place += 1
        match character:
            case "(":
                return self._group()
            case "[":
                return self._class(self._bracket())
            case "\\":
                return self._escape()
            case ".":
                return Class("(?s:.)" if self._flags.dot_all else ".")
            case "^":
                return _BEGIN
            case "$":
                return _END
            case "*" | "+" | "?" | "{":
                raise GrammarError(f"nothing is before {character!r} in a regex")
        return self._literal(character)

    def _literal(self, character: str) -> Node:
        if self._flags.any_case and character.lower() != character.upper():
            return self._class(_escaped(character))
        return Text(character)

    def _class(self, regex: str) -> Class:
        return Class(f"(?i:{regex})" if self._flags.any_case else regex)

    def _group(self) -> Node:
        outer = self._flags
        if (found := _NAME.match(self._text, self.place)) is not None:
            self.place = found.end()
        elif (found := _FLAGS.match(self._text, self.place)) is not None:
            self.place = found.end()
            self._flags = outer.with_(found[1], found[2] or "")
            if found[3] == ")":  # they hold up to the end of the group around
                return EMPTY
        elif self._text.startswith("?", self.place):
            raise GrammarError(
                f"'(?{self._text[self.place + 1 : self.place + 3]}' is not supported in a regex"
            )
        node = self.alternatives()
        self._flags = outer
        if not self._next(")"):
            raise GrammarError("a group of a regex is not closed")
        return Seq((node,))

    def _bracket(self) -> str:
        """The class whose bracket has just been read."""
        begin, depth, first = self.place - 1, 1, True
        while depth:
            if first:
                self._next("^")
            if self.place >= len(self._text):
                raise GrammarError("a class of a regex is not closed")
            character = self._text[self.place]
            self.place += 2 if character == "\\" else 1
            if character == "[":
                depth += 1
            elif character == "]" and not first:
                depth -= 1
            first = character == "["
        return self._text[begin : self.place]

    def _escape(self) -> Node:
        rest = self._text[self.place : self.place + 1]
        if (found := _CODE.match(self._text, self.place)) is not None:
            self.place = found.end()
            code = int(next(filter(None, found.groups())), 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise GrammarError(f"'\\{found[0]}' is no character")
            return self._literal(chr(code))
        if (found := _PROPERTY.match(self._text, self.place)) is not None:
            self.place = found.end()
            return self._class(f"\\{found[0]}")
        self.place += 1
        if rest and rest in "wWsS":
            return Class(f"\\{rest}")
        if rest and rest in "Az":
            return _BEGIN if rest == "A" else _END
        if rest in _CONTROLS:
            return Text(_CONTROLS[rest])
        if not rest or rest.isalnum() or not rest.isascii() or rest in "<>":
            raise GrammarError(f"'\\{rest}' is not supported in a regex")
        return Text(rest)

    def _next(self, text: str) -> bool:
        found = self._text.startswith(text, self.place)
        self.place += len(text) if found else 0
        return found


def _without_anchors(node: Node, begins: bool, ends: bool) -> Node:
    """`begins`, `ends`: whether the node stands at this end of the whole expression."""
    match node:
        case Name(name):
            if begins if name == "^" else ends:
                return EMPTY
            raise GrammarError(f"{name!r} within a regex is not supported")
        case Seq(parts):
            last = len(parts) - 1
            each = (
                _without_anchors(part, begins and index == 0, ends and index == last)
                for index, part in enumerate(parts)
            )
            return Seq(tuple(each))
        case Alt(parts):
            return Alt(tuple(_without_anchors(part, begins, ends) for part in parts))
        case Repeat(part, low, high):
            return Repeat(_without_anchors(part, False, False), low, high)
    return node
