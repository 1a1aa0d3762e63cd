"""The grammar of a text argument that follows a grammar of the client's, in Lark or a regular expression.

A rule has a variant for each pair of ends that it may have, see `input_spellings.py`. Two ends meet where the
one before writes the beginning of the one after, or where neither does.
"""

from collections.abc import Mapping, Sequence
from itertools import product

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.grammars.grammar_nodes import Alt, Name, Node, Repeat, Seq, Terminal
from tokenizer_svc.grammars.grammar_rules import GrammarRules
from tokenizer_svc.grammars.input_spellings import Ends, Spelling
from tokenizer_svc.grammars.lark_reader import Source, read_lark
from tokenizer_svc.grammars.regex_reader import read_regex

Relation = frozenset[Ends]
"""The pairs of ends that a node may have."""
_SAME: Relation = frozenset(((False, False), (True, True)))
_PLAIN: Relation = frozenset(((False, False),))


def read_source(syntax: str, definition: str) -> Source:
    """A client's grammar. `syntax`: "lark" or "regex". Raises `GrammarError`."""
    match syntax:
        case "lark":
            return read_lark(definition)
        case "regex":
            return Source(rules={"start": Terminal(read_regex(definition))})
    raise GrammarError(f"{syntax!r} is not a syntax of grammars: there are lark and regex")


class InputGrammar:
    """The rules of one input."""

    def __init__(self, rules: GrammarRules, source: Source, spelling: Spelling) -> None:
        self._rules, self._source, self._spelling = rules, source, spelling
        self._variants: dict[int | str, dict[Ends, str]] = {}
        self._made: dict[tuple[int | str, bool, bool], str] = {}
        self._known: dict[int, Relation] = {}
        self._of_rules: dict[str, Relation] = dict.fromkeys(source.rules, frozenset())
        self._more: list[Node] = []
        """Further nodes: others have the same id once one is gone."""
        self._ignored: Node | None = None
        if source.ignored:
            self._ignored = Repeat(Alt(tuple(Terminal(each) for each in source.ignored)), 0, None)
        bodies = {name: self._spaced(body) for name, body in source.rules.items()}
        self._bodies: Mapping[str, Node] = bodies
        start: Node = Name("start")
        self._start = start if self._ignored is None else Seq((start, self._ignored))
        self._relate()

    def text(self, end: str) -> str:
        """The expression of a whole input and of what comes after it. Raises `GrammarError`."""
        found, ways = self._relation(self._start), []
        if (False, False) in found:
            ways.append(f"{self._variant(self._start, False, False)} {end}")
        if (False, True) in found and self._spelling.ends_glued:
            ways.append(self._variant(self._start, False, True))
        if not ways:
            raise GrammarError("no text follows it")
        return self._rules.add(" | ".join(ways))

    def _spaced(self, node: Node) -> Node:
        """The node with what is ignored before each terminal."""
        if self._ignored is None:
            return node
        match node:
            case Terminal():
                return Seq((self._ignored, node))
            case Name(name) if name not in self._source.rules:
                return Seq((self._ignored, node))
            case Seq(parts):
                return Seq(tuple(map(self._spaced, parts)))
            case Alt(parts):
                return Alt(tuple(map(self._spaced, parts)))
            case Repeat(part, low, high):
                return Repeat(self._spaced(part), low, high)
        return node

    def _relate(self) -> None:
        """Find the ends that each rule may have."""
        changed = True
        while changed:
            changed = False
            for name, body in reversed(list(self._bodies.items())):
                self._known.clear()
                found = self._relation(body)
                changed |= found != self._of_rules[name]
                self._of_rules[name] = found
        self._known.clear()

    def _relation(self, node: Node) -> Relation:
        if id(node) not in self._known:
            self._known[id(node)] = self._found_relation(node)
        return self._known[id(node)]

    def _found_relation(self, node: Node) -> Relation:
        match node:
            case Seq(parts):
                found = _SAME
                for part in parts:
                    found = _joined(found, self._relation(part))
                return found
            case Alt(parts):
                return frozenset().union(*map(self._relation, parts))
            case Repeat(part, low, high):
                once = self._relation(part)
                more = _power(once | _SAME, 4 if high is None else high - low)
                return _joined(_power(once, low), more)
            case Name(name) if name in self._of_rules:
                return self._of_rules[name]
        return frozenset(self._terminal(node))

    def _terminal(self, node: Node) -> dict[Ends, str]:
        if isinstance(node, Name):
            key: int | str = node.name
            if key not in self._variants and node.name not in self._source.terminals:
                raise GrammarError(f"{node.name!r} is not defined")
        else:
            key, node = id(node), node.node if isinstance(node, Terminal) else node
        if key not in self._variants:
            self._variants[key] = self._spelling.variants(node)
        return self._variants[key]

    def _variant(self, node: Node, before: bool, after: bool) -> str:
        """The expression of a node with these ends, which it may have."""
        key = (node.name if isinstance(node, Name) else id(node), before, after)
        if key not in self._made:
            self._make(node, key)
        return self._made[key]

    def _make(self, node: Node, key: tuple[int | str, bool, bool]) -> None:
        _, before, after = key
        match node:
            case Name(name) if name in self._bodies:
                place = self._rules.declare()  # it may be part of itself
                self._made[key] = f"r{place}"
                self._rules.set(place, self._variant(self._bodies[name], before, after))
            case Alt(parts):
                ways = [self._variant(part, *key[1:]) for part in parts if key[1:] in self._relation(part)]
                self._made[key] = self._one_of(ways)
            case Seq(parts):
                self._made[key] = self._chain([(part, True) for part in parts], before, after)
            case Repeat(part, 0, None):
                self._star(node, part)
            case Repeat(part, low, None):
                self._more.append(star := Repeat(part, 0, None))
                self._made[key] = self._chain([(part, True)] * low + [(star, True)], before, after)
            case Repeat(part, low, int(high)):
                if before or self._relation(part) != _PLAIN:
                    steps = [(part, True)] * low + [(part, False)] * (high - low)
                    self._made[key] = self._chain(steps, before, after)
                else:
                    self._made[key] = f"({self._variant(part, False, False)}){{{low},{high}}}"
            case _:
                self._made[key] = self._one_of([self._terminal(node)[before, after]])

    def _star(self, node: Node, part: Node) -> None:
        """All variants of a part that is repeated any number of times."""
        once, found = self._relation(part), self._relation(node)
        if once == _PLAIN:
            self._made |= {(id(node), True, True): '""'}
            self._made[id(node), False, False] = f"({self._variant(part, False, False)})*"
            return
        places = {ends: self._rules.declare() for ends in sorted(found)}
        self._made |= {(id(node), *ends): f"r{place}" for ends, place in places.items()}
        for (before, after), place in places.items():
            ways = [
                f"r{places[before, between]} {self._variant(part, between, after)}"
                for between in (False, True)
                if (before, between) in found and (between, after) in once
            ]
            self._rules.set(place, " | ".join((*(['""'] if before == after else []), *ways)))

    def _chain(self, steps: Sequence[tuple[Node, bool]], before: bool, after: bool) -> str:
        """Steps one after the other. Each may have to be there; after one that is not, none is."""
        reached = [{before}]
        for part, needed in steps:
            ends = {end for begin, end in self._relation(part) if begin in reached[-1]}
            reached.append(ends if needed else ends | reached[-1])
        rest = {after: ""} if after in reached[-1] else {}
        for (part, needed), begins in zip(reversed(steps), reversed(reached[:-1]), strict=True):
            found: dict[bool, str] = {}
            for begin, end in product(sorted(begins), (False, True)):
                if end in rest and (begin, end) in self._relation(part):
                    way = f"{self._variant(part, begin, end)} {rest[end]}".strip()
                    found[begin] = f"{found[begin]} | {way}" if begin in found else way
            for begin in begins:
                if not needed and begin == after:
                    found[begin] = f'{found[begin]} | ""' if begin in found else '""'
            rest = {begin: self._one_of([way]) if " | " in way else way for begin, way in found.items()}
        return self._one_of([rest[before] or '""'])

    def _one_of(self, ways: Sequence[str]) -> str:
        """One symbol for several ways."""
        text = " | ".join(ways)
        return self._rules.add(text) if " " in text else text


def _joined(first: Relation, second: Relation) -> Relation:
    return frozenset((begin, end) for begin, one in first for other, end in second if one == other)


def _power(relation: Relation, times: int) -> Relation:
    found = _SAME
    while times:
        found = _joined(found, relation) if times & 1 else found
        relation, times = _joined(relation, relation), times >> 1
    return found
