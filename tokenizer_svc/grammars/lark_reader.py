"""Grammars in the library's dialect of Lark, as nodes."""

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.grammar_nodes import Alt, And, Class, Name, Node, Not, Repeat, Seq, Terminal, Text
from tokenizer_svc.grammars.regex_reader import escaped, read_regex

_FRACTION = r"([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?"
_NUMBER = rf"[0-9]+|{_FRACTION}|[0-9]+[eE](\+|-)?[0-9]+"
_FLOAT = rf"{_FRACTION}|[0-9]+[eE](\+|-)?[0-9]+"
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "_EXP": r"[eE](\+|-)?[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"(\+|-)?({_FLOAT})",
    "NUMBER": _NUMBER,
    "SIGNED_NUMBER": rf"(\+|-)?({_NUMBER})",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""The terminals that `%import common` knows, of Lark's own file of that name."""

_TOKEN = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[\ \t\r]+)
      |(?P<newline>\n)
      |(?P<string>"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*"i?)
      |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
      |(?P<options>%llguidance\s*\{\s*\})
      |(?P<statement>%[a-z]+)
      |(?P<special><[^<>\s]+>)
      |(?P<grammar>@[a-zA-Z0-9_-]+)
      |(?P<rule>[!?]{0,2}_?[a-z][_a-z0-9-]*)
      |(?P<terminal>_?[A-Z][_A-Z0-9-]*)
      |(?P<number>[0-9]+)
      |(?P<sign>->|\.\.|::|[:|()\[\]{}~&,.*+?=])""",
    re.VERBOSE,
)
_SPECIAL = {"special": "a special token", "grammar": "a reference to another grammar", "statement": "it"}


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


@dataclass
class Source:
    """A grammar."""

    rules: dict[str, Node] = field(default_factory=dict)
    terminals: dict[str, Node] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)
    """Terminals that may stand before, between and after others."""


def read_lark(text: str) -> Source:
    """Read a grammar. Raises `GrammarError` for what is no such or cannot be followed in an input."""
    return _Reader(text).source()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), _Token("end", "", text.count("\n") + 1)]
        self._place, self._source = 0, Source()
        self._in_rule = False
        """Whether it is a rule that is read, and not a terminal."""

    def source(self) -> Source:
        while self._peek().kind != "end":
            token = self._take()
            match token.kind:
                case "newline" | "options":
                    continue
                case "rule":
                    self._define(self._source.rules, token.text.lstrip("!?"), rule=True)
                case "terminal":
                    self._define(self._source.terminals, token.text, rule=False)
                case "statement" if token.text == "%import":
                    self._import()
                case "statement" if token.text == "%ignore":
                    self._in_rule = False
                    self._source.ignored.append(self._alternatives())
                case _:
                    raise self._refused(token)
            if self._peek().kind not in ("newline", "end"):
                raise self._refused(self._peek())
        if "start" not in self._source.rules:
            raise GrammarError("there is no rule 'start'")
        return self._source

    def _define(self, defined: dict[str, Node], name: str, rule: bool) -> None:
        if name in defined:
            raise GrammarError(f"{name!r} is defined twice")
        token = self._take()
        if token.text != ":":
            kind = {"{": "a template", ".": "a priority", "[": "an attribute", "::": "a parameter"}
            raise self._refused(token, kind.get(token.text, ""))
        self._in_rule = rule
        defined[name] = self._alternatives()

    def _import(self) -> None:
        module = self._take()
        names = []
        if module.text == "common" and self._next("."):
            names.append(self._take().text)
        elif module.text == "common" and self._next("("):
            names.append(self._take().text)
            while self._next(","):
                names.append(self._take().text)
            self._expect(")")
        else:
            raise self._refused(module, "an import of anything but 'common'")
        alias = self._take().text if len(names) == 1 and self._next("->") else ""
        for name in names:
            if name not in COMMON:
                raise GrammarError(f"'common' has no {name!r}; it has {', '.join(COMMON)}")
            if self._source.terminals.setdefault(alias or name, found := read_regex(COMMON[name])) != found:
                raise GrammarError(f"{alias or name!r} is defined twice")

    def _alternatives(self) -> Node:
        parts = [self._conjunction()]
        while self._bar():
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _bar(self) -> bool:
        """Take a `|`, which may stand on a line of its own."""
        place = self._place
        while self._peek().kind == "newline":
            self._place += 1
        if self._next("|"):
            return True
        if self._peek().text not in (")", "]"):
            self._place = place
        return False

    def _conjunction(self) -> Node:
        parts = [self._sequence()]
        while self._peek().text == "&":
            if self._in_rule:
                raise self._refused(self._peek(), "'&' in a rule")
            self._place += 1
            parts.append(self._sequence())
        if self._next("->"):
            self._take()
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek().kind not in ("newline", "end") and self._peek().text not in (
            "|",
            ")",
            "]",
            "&",
            "->",
        ):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        for sign, *times in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._next(sign):
                return Repeat(atom, *times)
        tilde = self._next("~")
        if not tilde and not self._next("{"):
            return atom
        low = 0 if not tilde and self._peek().text == "," else self._number()
        high: int | None = low
        if self._next(".." if tilde else ","):
            high = None if not tilde and self._peek().text == "}" else self._number()
        if not tilde:
            self._expect("}")
        if high is not None and not low <= high != 0:
            raise GrammarError(f"line {self._peek().line}: nothing is repeated {low} to {high} times")
        return Repeat(atom, low, high)

    def _atom(self) -> Node:
        token = self._take()
        match token.kind, token.text:
            case _, "~":
                in_rule, self._in_rule = self._in_rule, False
                node: Node = Not(self._atom())
                self._in_rule = in_rule
                return Terminal(node) if in_rule else node
            case _, "(":
                node = self._alternatives()
                self._expect(")")
                return Seq((node,))
            case _, "[":
                node = self._alternatives()
                self._expect("]")
                return Repeat(node, 0, 1)
            case "rule" | "terminal" as kind, name:
                if (after := self._peek().text) == "::" or (after == "{" and not self._counts()):
                    raise self._refused(token, "a parameter" if after == "::" else "a template")
                if kind == "rule" and not self._in_rule:
                    raise self._refused(token, f"the rule {name!r} in a terminal")
                return Name(name)
            case "string", _:
                node = self._string(token)
            case "regex", text:
                regex, _, flags = text[1:].rpartition("/")
                node = self._regex(token, regex, flags)
            case _:
                raise self._refused(token)
        return Terminal(node) if self._in_rule else node

    def _counts(self) -> bool:
        after = self._tokens[min(self._place + 1, len(self._tokens) - 1)]
        return after.kind == "number" or after.text == ","

    def _string(self, token: _Token) -> Node:
        any_case = token.text.endswith("i")
        text = _unquoted(token.text.removesuffix("i"))
        if not self._next(".."):
            return self._regex(token, escaped(text), "i") if any_case else Text(text)
        last = self._take()
        end = _unquoted(last.text) if last.kind == "string" and last.text.endswith('"') else ""
        if any_case or len(text) != 1 or len(end) != 1 or end < text:
            raise GrammarError(f"line {token.line}: a range needs two characters in their order")
        return Class(f"[{escaped(text)}-{escaped(end)}]")

    def _regex(self, token: _Token, regex: str, flags: str) -> Node:
        try:
            return read_regex(regex, flags)
        except GrammarError as error:
            raise GrammarError(f"line {token.line}: {error}") from error

    def _number(self) -> int:
        token = self._take()
        if token.kind != "number":
            raise self._refused(token)
        return int(token.text)

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._peek()
        self._place += token.kind != "end"
        return token

    def _next(self, text: str) -> bool:
        found = self._peek().text == text and self._peek().kind == "sign"
        self._place += found
        return found

    def _expect(self, text: str) -> None:
        if not self._next(text):
            raise GrammarError(f"line {self._peek().line}: {text!r} is missing")

    def _refused(self, token: _Token, what: str = "") -> GrammarError:
        what = what or _SPECIAL.get(token.kind, "")
        if what:
            return GrammarError(
                f"line {token.line}: {token.text!r}: {what} is not supported in an input's grammar"
            )
        return GrammarError(f"line {token.line}: {token.text!r} is not expected there")


def _tokens(text: str) -> list[_Token]:
    found, place, line = [], 0, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise GrammarError(f"line {line}: {text[place : place + 16]!r} is not Lark")
        kind = str(match.lastgroup)
        if kind != "skip":
            found.append(_Token(kind, match[0], line))
        line += match[0].count("\n")
        place = match.end()
    return found


def _unquoted(string: str) -> str:
    try:
        text: str = json.loads(re.sub(r"\\(?:x(..)|(.))", lambda m: f"\\u00{m[1]}" if m[1] else m[0], string))
        text.encode()
    except (ValueError, UnicodeError) as error:
        raise GrammarError(f"{string} is no text") from error
    return text
