"""Parts of an answer, one after the other, as a grammar in the library's dialect of Lark.

The library cuts an answer into terminals, and always takes the longest. A text without a mark at its end
would take what follows it, too. So neighbours that are regular become one terminal, which has every reading
of them all. Elsewhere `check` refuses a terminal that could go on with what follows it.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from string import digits

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.grammar_rules import ANY, GrammarRules, quoted
from tokenizer_svc.grammars.regex_reader import first_characters

_SOME = "/(?s:.+)/"
_NONE: frozenset[str] = frozenset()
JSON, DIGITS = "%json", "/[0-9]+/"
"""In `Part.last`: a value of JSON, and one that may be a number. Each value of JSON has an expression of its
own in `Part.first`."""
_UNCLEAR = "where a part ends cannot be told from what follows it: 'excludes' or another 'end' may help"


@dataclass(frozen=True)
class Part:
    """A part of an answer."""

    text: str
    """The expression in Lark: of a terminal if the part is plain, else of a rule."""
    plain: bool = False
    """The part is regular, and has no special tokens."""
    empty: bool = False
    """The part may be empty."""
    first: frozenset[str] = _NONE
    """Expressions that the part may begin with. A special token is none."""
    last: frozenset[str] = _NONE
    """Terminals that the part may end with and that could go on."""
    choices: frozenset[str] = _NONE
    """All texts of the part, if they are known; else none."""
    without: frozenset[str] | None = None
    """Texts that do not occur in the part, which is any other text. None: it is not any text."""
    ways: "tuple[Parts, ...]" = ()
    """The alternatives that the part is made of; none: it has no alternatives."""
    loops: bool = False
    """The part repeats without a bound. Its alternatives are one more time and the end."""


Parts = tuple[Part, ...]


def plain(text: str, empty: bool = False, ended: bool = False, choices: frozenset[str] = _NONE) -> Part:
    """A regular part. `ended`: no text of the part begins with another one of its texts."""
    whole = frozenset((text,))
    return Part(text, True, empty, whole, _NONE if ended else whole, choices)


def constant(text: str) -> Parts:
    """This very text, which has no special tokens in it."""
    return (plain(quoted(text), ended=True, choices=frozenset((text,))),) if text else ()


def any_text(without: Iterable[str] = (), most: int | None = None) -> Part:
    """Any text without these in it. `most`: characters at most."""
    marks = frozenset(without)
    text = ANY if most is None else f"/(?s:.{{0,{most}}})/"
    if marks:
        text = f"({text} & ~({ANY} ({' | '.join(map(quoted, sorted(marks)))}) {ANY}))"
    return Part(text, True, True, frozenset((text,)), frozenset((text,)), without=marks)


def check(parts: Parts) -> None:
    """Raises `GrammarError` if the end of a part cannot be told from what follows it."""
    for place, part in enumerate(parts):
        if _overlap(part.last, _first(parts[place + 1 :])):
            raise GrammarError(_UNCLEAR)
        if sum(text.startswith(JSON) for text in _first(parts[place:])) > 1:
            raise GrammarError("two values of JSON may begin here: one schema with 'anyOf' says the same")


class PartRules:
    """The rules and terminals that parts are made of."""

    def __init__(self, rules: GrammarRules) -> None:
        self._rules, self._terminals = rules, dict[str, str]()

    def whole(self, parts: Parts) -> str:
        """The expression of parts that nothing more is joined to. Raises `GrammarError`."""
        check(parts)
        return " ".join(map(self._symbol, parts)) or '""'

    def joined(self, *parts: Part) -> Parts:
        """The parts one after the other."""
        found: list[Part] = []
        for part in parts:
            self._append(found, part)
        return tuple(found)

    def either(self, *ways: Parts) -> Parts:
        """One of several."""
        ways = tuple(dict.fromkeys(ways))
        if len(ways) == 1:
            return ways[0]
        if all(len(way) == 0 or (len(way) == 1 and way[0].plain) for way in ways):
            return (_one_of(ways),)
        name = self._rules.add(" | ".join(map(self.whole, ways)))
        first = frozenset[str]().union(*map(_first, ways))
        last = frozenset[str]().union(*map(_last, ways))
        return (Part(name, empty=any(map(_empty, ways)), first=first, last=last, ways=ways),)

    def repeated(self, parts: Parts, low: int, high: int | None) -> Parts:
        """The parts several times. `high`: None: any number of times. Raises `GrammarError`."""
        if not parts or high == 0:
            return ()
        times = "*" if high is None and not low else f"{{{low},{'' if high is None else high}}}"
        if len(parts) == 1 and parts[0].plain:
            return (plain(f"({parts[0].text}){times}", empty=low == 0 or parts[0].empty),)
        if (low, high) == (0, 1):
            return self.either(parts, ())
        first, last, empty = _first(parts), _last(parts), low == 0 or _empty(parts)
        if _overlap(last, first):
            raise GrammarError(_UNCLEAR)
        name = self._rules.add(self.whole(parts))
        if high is not None:
            return (Part(f"{name}{times}", empty=empty, first=first, last=last),)
        loop = Part(f"{name}*", empty=True, first=first, last=last)
        star = Part(f"{name}*", empty=True, first=first, last=last, ways=((*parts, loop), ()), loops=True)
        if low <= 1:
            return (star,) if low == 0 else (*parts, star)
        return (*parts, Part(f"{name}{{{low - 1},}}", empty=empty, first=first, last=last))

    def _append(self, found: list[Part], part: Part) -> None:
        """Join one more. Where only the whole tells an end, what is beside alternatives goes into each."""
        before = found[-1] if found else None
        if before is None or not (before.plain or part.plain):
            found.append(part)
        elif before.plain and part.plain:
            found[-1] = _glued(before, part)
        elif part.ways and _overlap(before.last, part.first):
            found.pop()
            for each in self.either(*(self.joined(before, *way) for way in part.ways)):
                self._append(found, each)
        elif before.ways and before.last and not before.loops:
            found.pop()
            for each in self.either(*(self.joined(*way, part) for way in before.ways)):
                self._append(found, each)
        else:
            found.append(part)

    def _symbol(self, part: Part) -> str:
        if not part.plain or part.text.startswith('"'):
            return part.text
        if part.text not in self._terminals:
            self._terminals[part.text] = self._rules.add(part.text, terminal=True)
        return self._terminals[part.text]


def _one_of(ways: tuple[Parts, ...]) -> Part:
    """One of several regular parts, or nothing."""
    each = [way[0] for way in ways if way]
    empty = len(each) < len(ways)
    fixed = not empty and all(one.choices for one in each)
    choices = _NONE.union(*(one.choices for one in each)) if fixed else _NONE
    ended = bool(choices) and not any(second.startswith(one) for one, second in pairwise(sorted(choices)))
    text = " | ".join((*(one.text for one in each), *(['""'] if empty else [])))
    return plain(f"({text})", empty or any(one.empty for one in each), ended, choices)


def _glued(before: Part, part: Part) -> Part:
    """Two regular parts as one."""
    if len(before.choices) == len(part.choices) == 1:
        return constant("".join((*before.choices, *part.choices)))[0]
    text, ended = f"({before.text} {part.text})", not (before.last or part.last)
    marks = before.without
    if part.choices and marks and all(each.startswith(tuple(marks)) for each in part.choices):
        ended = not part.last
        # A mark that runs into the next one would end the text in two places: the first one counts.
        if ended and any(_meet(one, other) for one, other in product(part.choices, repeat=2)):
            text = f"({text} & ~({ANY} {part.text} {_SOME}))"
    return plain(text, before.empty and part.empty, ended)


def _meet(one: str, other: str) -> bool:
    """Whether a text that ends with one mark may go on and end with the other, which begins in the first."""
    if one != other and one in other:
        return True
    return any(other.startswith(one[place:]) and other != one[place:] for place in range(len(one)))


def _first(parts: Parts) -> frozenset[str]:
    found = _NONE
    for part in parts:
        found |= part.first
        if not part.empty:
            break
    return found


def _last(parts: Parts) -> frozenset[str]:
    found = _NONE
    for part in reversed(parts):
        found |= part.last
        if not part.empty:
            break
    return found


def _empty(parts: Parts) -> bool:
    return all(part.empty for part in parts)


def _overlap(last: frozenset[str], first: frozenset[str]) -> bool:
    """Whether one of the terminals may go on with a character that one of the expressions begins with.

    That a number takes all digits is no harm, unless what follows needs some. Before a value of JSON the
    library allows spaces where another one is before it, or could be in its place.
    """
    if not last or not first:
        return False
    characters = _characters(first)
    needed = bool(characters) and characters <= frozenset(digits)
    codes = [rf"\x{{{ord(each):x}}}" for each in sorted(characters - {"\x80"})]
    codes += [r"\x{80}-\x{10ffff}"] * ("\x80" in characters)
    if JSON in last and any(each.startswith(JSON) for each in first):
        return True
    terminals = last - {JSON, DIGITS} if codes else _NONE
    return (DIGITS in last and needed) or any(_goes_on(each, f"/[{''.join(codes)}]/") for each in terminals)


@functools.cache
def _goes_on(terminal: str, character: str) -> bool:
    return bool(first_characters(f"start: T\nT: {terminal} & ({terminal} {character} {ANY})"))


@functools.cache
def _characters(first: frozenset[str]) -> frozenset[str]:
    """What the expressions begin with, as of `first_characters`."""
    named = [f"{'r' if text.startswith('%') else 'T'}{place}" for place, text in enumerate(sorted(first))]
    rules = (f"{name}: {text}" for name, text in zip(named, sorted(first), strict=True))
    try:
        return first_characters("\n".join((f"start: {' | '.join(named)}", *rules)))
    except GrammarError:  # a client's grammar may name tokens of the model
        return frozenset(map(chr, range(0x81)))
