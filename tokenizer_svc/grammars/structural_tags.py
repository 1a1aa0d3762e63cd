"""The grammar of a structural tag: texts, tags and values as a tree of formats, see `tag_formats.py`.

It is in the library's dialect of Lark, in which no text matches a special token: a mark that has one in it is
written in pieces, the token by its number.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, permutations, product
from typing import Any

from llguidance import LLMatcher

from ops.model_directory.grammars import GrammarError
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.entry import LINE
from tokenizer_svc.formats.formats import MOST_BUDGET, ThoughtRules
from tokenizer_svc.grammars import tag_formats as tags
from tokenizer_svc.grammars.call_grammar import WHITESPACE, arguments_grammar
from tokenizer_svc.grammars.grammar_parts import (
    DIGITS,
    JSON,
    Part,
    PartRules,
    Parts,
    any_text,
    check,
    constant,
    plain,
)
from tokenizer_svc.grammars.grammar_rules import ANY, quoted
from tokenizer_svc.grammars.lark_or_gbnf import lark_of
from tokenizer_svc.grammars.regex_reader import may_be_empty, plain_digits, slashed
from tokenizer_svc.grammars.schema_closed import closed
from tokenizer_svc.grammars.schema_limits import followed
from tokenizer_svc.grammars.thought_grammar import Texts

_CALLS = {
    "qwen_xml": "qwen3_coder",
    "minimax_xml": "minimax_m2",
    "minimax_m3_xml": "minimax_m3",
    "deepseek_xml": "deepseek_v32",
    "deepseek_v4_1_xml": "deepseek_v41",
    "glm_xml": "glm",
    "kimi_k3_xml": "kimi_k3",
    "gemma": "gemma4",
}
"""By the style of a value: the format of calls whose arguments are written so."""
_MOST_SPACES = 41
"""Of `WHITESPACE`."""
_NO_NUMBERS = frozenset(("object", "array", "string", "boolean", "null"))


def structural_grammar(text: str, special: Mapping[str, int]) -> str:
    """The grammar of a structural tag, given as JSON. `special`: ids of the special tokens, by their text.

    Raises `GrammarError`, which names the format that cannot be followed.
    """
    texts = Texts(ThoughtRules("", special))
    return texts.grammar(_Tags(texts, special).text(tags.read_format(text)))


class _PlacedError(GrammarError):
    """An error that names its format."""


@contextlib.contextmanager
def _at(place: str) -> Iterator[None]:
    """Errors name this place, unless they name one within it."""
    try:
        yield
    except _PlacedError:
        raise
    except GrammarError as error:
        raise _PlacedError(f"{place}: {error}") from error


class _Tags:
    def __init__(self, texts: Texts, special: Mapping[str, int]) -> None:
        self._texts, self._rules, self._parts = texts, texts.rules, PartRules(texts.rules)
        self._special = special
        self._names = {token: text for text, token in special.items() if text}
        longest = sorted(filter(None, special), key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest))})" if longest else "(?!)")

    def text(self, form: tags.Format) -> str:
        """The expression of a whole answer."""
        with _at("format"):
            return self._parts.whole(self._of(form, "format", ()))

    def _of(self, form: tags.Format, place: str, ends: Collection[str]) -> Parts:
        """The parts of a format. `ends`: texts that end the innermost tag around it."""
        with _at(place):
            parts = self._made(form, place, ends)
            check(parts)
            return parts

    def _made(self, form: tags.Format, place: str, ends: Collection[str]) -> Parts:
        within = f"{place}.content"
        match form:
            case tags.Sequence(elements=elements):
                return self._parts.joined(*chain(*self._each(elements, place, ends)))
            case tags.Or(elements=elements):
                return self._parts.either(*self._each(elements, place, ends))
            case (
                tags.Some(content=content, times=(low, high))
                | tags.Repeat(content=content, times=(low, high))
            ):
                return self._parts.repeated(self._of(content, within, ends), low, high)
            case tags.Tag():
                return self._parts.joined(*self._text(self._mark(form.begin)), *self._inner(form, place))
            case tags.TagsWithSeparator():
                return self._separated(form, place)
            case tags.TriggeredTags() | tags.TokenTriggeredTags():
                return self._triggered(form, place, ends)
            case tags.Dispatch() | tags.TokenDispatch():
                return self._dispatched(form, place, ends)
        return self._leaf(form, ends)

    def _leaf(self, form: tags.Leaf, ends: Collection[str]) -> Parts:
        match form:
            case tags.ConstString(value=value):
                return self._text(value)
            case tags.Token():
                return self._text(self._mark(form))
            case tags.Regex(pattern=pattern):
                return _regex(pattern)
            case tags.AnyText():
                return self._any_text(form, ends)
            case tags.AnyTokens(exclude_tokens=tokens, max_tokens=most):
                return self._tokens(tokens, most, ends)
            case tags.Grammar(grammar=grammar):
                return self._grammar(grammar)
            case tags.JsonSchema():
                return self._value(form)

    def _each(self, forms: Sequence[tags.Format], place: str, ends: Collection[str]) -> list[Parts]:
        return [self._of(form, f"{place}.elements[{index}]", ends) for index, form in enumerate(forms)]

    def _text(self, text: str) -> Parts:
        """This very text, with special tokens as such."""
        pieces = enumerate(self._marks.split(text))
        special = self._special
        each = ((Part(f"<[{special[piece]}]>"),) if index % 2 else constant(piece) for index, piece in pieces)
        return tuple(chain(*each))

    def _mark(self, mark: str | tags.Token) -> str:
        """The text of a mark."""
        match mark:
            case str():
                return mark
            case tags.Token(token=str(name)) if name in self._special:
                return name
            case tags.Token(token=int(number)) if number in self._names:
                return self._names[number]
        raise GrammarError(f"the model has no special token {mark.token!r}")

    def _but(self, tokens: Iterable[int | str]) -> str:
        """The expression of one token that is neither special nor among these."""
        names = (self._mark(tags.Token(token=each)) for each in tokens if isinstance(each, str))
        ordinary = {each for each in tokens if isinstance(each, int)}
        ids = sorted(ordinary.union(map(self._special.__getitem__, names), self._names))
        return f"<[^{','.join(map(str, ids))}]>" if ids else "<[*]>"

    def _tokens(self, excluded: Sequence[int | str], most: int | None, ends: Collection[str]) -> Parts:
        """Any number of tokens. Where all are allowed that are no special ones, they are a text."""
        token = self._but(excluded)
        if most is None:
            return (any_text({*ends} - {""}),) if token == self._but(()) else (_counted(f"{token}*"),)
        return (_counted(f"{token}{{0,{min(most, MOST_BUDGET)}}}"),) if most else ()

    def _any_text(self, form: tags.AnyText, ends: Collection[str]) -> Parts:
        without = {*form.excludes, *ends} - {""}
        if form.max_tokens is None:
            return (any_text(without, form.max_chars),)
        if form.max_chars is not None or not all(map(self._marks.search, without)):
            message = "max_tokens: tokens are counted up to special tokens alone, and not beside max_chars"
            raise GrammarError(message)
        return self._tokens((), form.max_tokens, ends)

    def _grammar(self, grammar: str) -> Parts:
        try:
            lark = lark_of(grammar, self._special)
        except Exception as error:  # the reader of GBNF raises what comes up
            raise GrammarError(str(error)) from error
        if wrong := LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(lark)):
            raise GrammarError(wrong)
        text = f"%lark {{\n{lark}\n}}"
        try:
            empty = may_be_empty(text)
        except GrammarError:  # it may name tokens of the model
            empty = True
        return (Part(self._rules.add(text), empty=empty, first=frozenset((text,))),)

    def _value(self, form: tags.JsonSchema) -> Parts:
        schema, most = form.json_schema, form.max_whitespace_cnt
        if schema is False:
            raise GrammarError("no value is valid")
        if schema is True:
            schema = {}
        if other := [text for text in form.excludes if not self._marks.search(text)]:
            raise GrammarError(f"excludes: {other[0]!r} has no special token of the model in it")
        if form.style == "json":
            return self._json(schema, most)
        if most == 0:
            raise GrammarError(f"max_whitespace_cnt: the style {form.style!r} has spaces in its values")
        return self._arguments(schema, form.style)

    def _json(self, schema: dict[str, Any], most: int | None) -> Parts:
        followable: dict[str, Any] = followed(closed(schema), lenient=False)
        options: Any = {"whitespace_pattern": _spaces(most), "lenient": False}
        if wrong := LLMatcher.validate_grammar(
            LLMatcher.grammar_from_json_schema(json.dumps(followable), options)
        ):
            raise GrammarError(wrong)
        text = f"{JSON} " + json.dumps(followable | {"x-guidance": options})
        last = frozenset((JSON,) if followable.get("type") in _NO_NUMBERS else (JSON, DIGITS))
        rule = self._rules.add(text)
        return (Part(rule, first=frozenset((f"{text} // {rule}",)), last=last),)

    def _arguments(self, schema: dict[str, Any], style: str) -> Parts:
        """An object's members as a call's arguments."""
        calls = CALLS[_CALLS[style]]
        if calls.argument.endswith("\n"):  # there may be one in the mark that follows
            calls = replace(calls, argument=calls.argument.removesuffix("\n") + LINE)
        rule = arguments_grammar(schema, calls, self._texts)
        begin = calls.argument.partition("$")[0]
        first = frozenset((quoted(begin),)) if begin and not self._marks.match(begin) else frozenset[str]()
        found = (Part(rule, empty=True, first=first),)
        return found if begin else (*constant("{"), *found, *constant("}"))

    def _inner(self, tag: tags.Tag, place: str) -> Parts:
        """What follows the begin of a tag."""
        ends = [self._mark(end) for end in tag.ends]
        content = self._of(tag.content, f"{place}.content", ends)
        return self._parts.joined(*content, *self._parts.either(*map(self._text, ends)))

    def _separated(self, form: tags.TagsWithSeparator, place: str) -> Parts:
        each = [self._of(tag, f"{place}.tags[{index}]", ()) for index, tag in enumerate(form.tags)]
        found = one = self._parts.either(*each)
        if not form.stop_after_first:
            further = self._parts.joined(*self._text(form.separator), *one)
            found = self._parts.joined(*one, *self._parts.repeated(further, 0, None))
        return found if form.at_least_one else self._parts.either(found, ())

    def _triggered(
        self, form: tags.TriggeredTags | tags.TokenTriggeredTags, place: str, ends: Collection[str]
    ) -> Parts:
        triggers = [self._mark(trigger) for trigger in form.triggers]
        begun: list[tuple[Parts, Parts]] = []
        whole: list[Parts] = []
        for index, tag in enumerate(form.tags):
            with _at(f"{place}.tags[{index}]"):
                begin, inner = self._mark(tag.begin), self._inner(tag, f"{place}.tags[{index}]")
                at = self._end_of_trigger(triggers, begin)
                begun.append((self._text(begin[:at]), self._parts.joined(*self._text(begin[at:]), *inner)))
                whole.append(self._parts.joined(*self._text(begin), *inner))
        free = self._text_before(triggers, form.excludes, ends)
        if not form.at_least_one:
            return self._in_text(free, begun, form.stop_after_first)
        first = self._parts.either(*whole)
        if form.stop_after_first:
            return first
        return self._parts.joined(*first, *self._in_text(free, begun, False))

    def _end_of_trigger(self, triggers: Sequence[str], begin: str) -> int:
        """How much of the begin of a tag its trigger takes. A special token is not cut."""
        found = {trigger for trigger in triggers if begin.startswith(trigger)}
        if len(found) != 1:
            many = "several triggers are" if found else "no trigger is"
            raise GrammarError(f"{many} the beginning of {begin!r}")
        at = len(found.pop())
        cut = (mark.end() for mark in self._marks.finditer(begin) if mark.start() < at < mark.end())
        return next(cut, at)

    def _dispatched(
        self, form: tags.Dispatch | tags.TokenDispatch, place: str, ends: Collection[str]
    ) -> Parts:
        patterns = [self._mark(pattern) for pattern, _ in form.rules]
        rests = [
            self._of(content, f"{place}.rules[{index}]", ends)
            for index, (_, content) in enumerate(form.rules)
        ]
        free = self._text_before(patterns, form.excludes, ends)
        return self._in_text(free, zip(map(self._text, patterns), rests, strict=True), not form.loop)

    def _text_before(
        self, triggers: Sequence[str], excludes: Iterable[str | tags.Token], ends: Collection[str]
    ) -> Part:
        """A text that a trigger ends."""
        without = {*map(self._mark, excludes), *ends} - {""}
        _check_apart(triggers, without)
        return any_text({*without, *triggers})

    def _in_text(self, free: Part, begun: Iterable[tuple[Parts, Parts]], once: bool) -> Parts:
        """A text with tags in it, given by what begins each and the rest. `once`: it ends with the first."""
        by_head: dict[Parts, list[Parts]] = {}
        for head, rest in begun:
            by_head.setdefault(head, []).append(rest)
        join, either = self._parts.joined, self._parts.either
        tag = either(*(join(free, *head, *either(*rests)) for head, rests in by_head.items()))
        return either(tag, (free,)) if once else join(*self._parts.repeated(tag, 0, None), free)


def _counted(text: str) -> Part:
    """Any number of tokens. A text next to them could be of them, too."""
    return Part(text, empty=True, first=frozenset(("/(?s:.)/",)), last=frozenset((ANY,)))


def _spaces(most: int | None) -> str:
    """A regular expression of what is between two parts of JSON. `most`: characters at most."""
    if most is None or most >= _MOST_SPACES:
        return WHITESPACE
    return rf"( |\n[ ]{{0,{most - 1}}})?" if most else ""


def _regex(pattern: str) -> Parts:
    text = f"/{slashed(plain_digits(pattern))}/"
    return (plain(text, may_be_empty(text)),)


def _check_apart(triggers: Iterable[str], without: Iterable[str]) -> None:
    """`without`: what is not in the text that the triggers end."""
    different = set(triggers)
    for one, other in (*permutations(different, 2), *product(without, different)):
        if one in other or any(other.startswith(one[place:]) for place in range(1, len(one))):
            raise GrammarError(f"where {one!r} begins a tag or is excluded, {other!r} cannot begin one")
