"""Splits a model's text into thoughts, content and calls of functions, as it comes.

A call is delivered when it is complete. A text that has begun like one and is none becomes content, but not a
call that was cut off behind its mark. That is too late once a part of the call has been delivered. What comes
out depends on the text, not on its cuts.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from gateway.api.parsers.calls import Call, Functions, read_calls
from gateway.api.parsers.cut_calls import ended_calls
from proto.tokenizer_pb2 import ELEMENTS, JSON_CALLS, NAMED_JSON, PYTHON_CALLS, AnswerFormat

MOST_NOTED = 16
"""Marks of calls in a thought, counted from its end, that may begin calls."""
MOST_OPENING = 512
"""Characters in which a call without a mark names its function."""


class Pieces(NamedTuple):
    """What a text adds to an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class Splitter:
    """Splits the text of one sequence."""

    def __init__(self, form: AnswerFormat, functions: Functions) -> None:
        self._form, self._functions = form, functions
        self._begins, self._first = (
            _named(marks, functions, form.call_text) for marks in (form.call_begin, form.call_first)
        )
        self.thinking = form.thinking
        """The text so far ends within a thought."""
        self._text = form.begun
        """What has come and is not decided: it may be the beginning of a mark."""
        self._given = len(form.begun)
        """Characters at the beginning of `_text` that are the prompt's."""
        self._space = ""
        """White space before `_text`, and what may end the answer. Between parts it is left out."""
        self._skip_space = form.thinking
        """A part has begun, and nothing of it has been delivered."""
        self._begun = form.thinking
        """Something that is not white space has come."""
        self._after_call = False
        self._after_end = False
        """A message of an answer that consists of messages has ended, or the next one has begun."""
        self._call: list[str] | None = None
        """The call that is under way: its mark, then its text."""
        self._quoted = ""
        """The quote of a string of JSON or Python, within which the call's text ends; empty: of none."""
        self._escape = ""
        """A backslash that ends the call's text, and changes what the next character means."""
        self._depth: int | None = None
        """Brackets that are open in the JSON of a call without a mark; None: none has been."""
        self._closed = False
        """The call began with its name, and has its own end: the end of calls or another call may follow."""
        self._noted: deque[list[str]] = deque(maxlen=MOST_NOTED)
        """Texts of the thought that is under way: from each mark of a call up to the next one."""
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._found: list[Call] = []

    def add(self, text: str) -> Pieces:
        """What `text` adds to what has come before."""
        self._text += text
        while self._advance():
            pass
        return self._taken()

    def finish(self, cut: bool = False) -> Pieces:
        """What is left when no more text comes. `cut`: the answer has all the tokens that it may have.

        What has begun like a call is no content if the call was demanded, or if it was cut and has a mark.
        """
        demanded = self._form.call_demanded and not self.thinking
        if self._call is not None:
            self._call.append(self._text)
            self._text = ""
            # Of most syntaxes a text says by itself that it is complete, and the mark may be an end token.
            open_ended = self._form.call_syntax == ELEMENTS and self._form.call_text.endswith("$arguments")
            lost = demanded or (cut and bool(self._call[0]))
            self._end_call("", complete=not open_ended, lost=lost, cut=cut)
        if demanded or (cut and (self._after_call or self._in_head())):
            self._text = self._space = ""  # the beginning of a mark
        self._say_up_to(len(self._text))
        if self.thinking and not cut:
            self._found += self._calls_at_end()
        if end := self._form.answer_end:
            before, found, after = self._space.rpartition(end)
            self._space = before.removesuffix("\n") if found else after
        if not (self.thinking or self._after_call or self._skip_space):
            self._content.append(self._space)
        self._space = ""
        return self._taken()

    def _in_head(self) -> bool:
        """Whether the text that is not decided is the beginning of a message, which has no text yet."""
        begun = self._form.begun
        return bool(begun) and (self._given > 0 or self._after_end or self._text.startswith(begun))

    def _taken(self) -> Pieces:
        pieces = Pieces("".join(self._reasoning), "".join(self._content), tuple(self._found))
        self._reasoning, self._content, self._found = [], [], []
        return pieces

    def _advance(self) -> bool:
        """Use the text up to its first mark. Whether there was one."""
        if self._call is not None:
            return self._in_call(self._call)
        if (opens := self._opens()) is not False:
            return bool(opens)
        marks = self._marks()
        place, mark = _find(self._text, marks)
        if not self._begun and self._text[:place].strip():
            # Once the answer has begun, there are fewer marks.
            self._say_up_to(place)
            return True
        if self.thinking and mark in self._begins:
            self._say_up_to(place)
            self._noted.append([])
            self._say_up_to(len(mark))
            return True
        self._say_up_to(place, mark)
        if not mark:
            return False
        self._after_end = mark in (self._form.begun, self._form.thought_end)
        if self.thinking and mark == self._form.thought_end:
            self.thinking, self._space, self._skip_space, self._begun = False, "", True, False
            self._noted.clear()
        elif mark in self._begins or mark in self._first:
            self._begin_call(mark)
        elif mark == self._form.thought_begin:
            self.thinking, self._space, self._skip_space = True, "", True
        elif mark == self._form.answer_begin:
            self._skip_space = True
        elif mark == self._form.answer_end:
            self._space += mark
        return True

    def _marks(self) -> tuple[str, ...]:
        form = self._form
        if self.thinking:
            return (form.thought_end, *self._begins)
        thought = form.thought_begin if form.thoughts_anywhere or not self._begun else ""
        first = () if self._begun else (*self._first, form.answer_begin)
        return tuple(filter(None, (*self._begins, *first, *form.delimiters, form.answer_end, thought)))

    def _opens(self) -> bool | None:
        """Whether the answer is calls alone, from its first character on. None: it may be."""
        form, stripped = self._form, self._text.lstrip()
        if self._begun or self.thinking or not stripped:
            return False
        if stripped[0] not in form.call_opening:
            opens = form.call_bare and stripped[0] in "{[`" and self._names(stripped)
            if not opens:
                return opens
        self._space += self._text[: len(self._text) - len(stripped)]
        self._text, self._begun = stripped, True
        self._begin_call("")
        return True

    def _names(self, text: str) -> bool | None:
        """Whether it begins like a call in JSON, which may be in a block of code. None: it may do so."""
        said, short = "".join(text[:MOST_OPENING].split()), len(text) <= MOST_OPENING
        for head in _HEADS if self._functions else ():
            if head.startswith(said):
                return None if short else False
            if said.startswith(head):
                name, quote, _ = said.removeprefix(head).partition('"')
                names = self._sorted_names
                (following,) = names[bisect_left(names, name) :][:1] or ("",)
                return following == name if quote else None if short and following.startswith(name) else False
        return False

    @cached_property
    def _sorted_names(self) -> tuple[str, ...]:
        return _sorted(tuple(self._functions))

    def _begin_call(self, mark: str) -> None:
        self._call, self._quoted, self._escape, self._depth, self._closed = [mark], "", "", None, False

    def _goes_on(self, begin: str) -> bool | None:
        """Whether arguments or the call's end follow a mark that names the function alone. None: they may.

        Texts tell of such a mark.
        """
        form, text = self._form, self._text.lstrip()
        if not self._by_name(begin):
            return True
        _, _, end = form.call_text.partition("$arguments")
        following = (form.argument_text.partition("$")[0], end.strip())
        if text.startswith(following):
            return True
        return None if any(each.startswith(text) for each in following) else False

    def _by_name(self, begin: str) -> bool:
        """Whether this mark is the beginning of a call's text, with the function's name in it."""
        head = self._form.call_text.partition("$arguments")[0].strip()
        return begin not in self._form.call_begin and head in self._form.call_begin

    def _behind_call(self, call: list[str]) -> bool:
        """Use what follows the own end of a call. It is a call if only calls or their end follow."""
        form, text = self._form, self._text.lstrip()
        following = (form.call_end, *self._begins)
        if not text or (not text.startswith(following) and any(each.startswith(text) for each in following)):
            return False
        if text.startswith(form.call_end):
            call.append(self._text[: len(self._text) - len(text)])
            self._text = text.removeprefix(form.call_end)
            self._end_call(form.call_end)
        else:
            self._end_call("", complete=text.startswith(following))
        return True

    def _in_call(self, call: list[str]) -> bool:
        form, bare = self._form, not call[0] and self._form.call_syntax == JSON_CALLS
        if len(call) == 1 and (goes_on := self._goes_on(call[0])) is not True:
            if goes_on is False:
                self._end_call("", complete=False)
            return goes_on is False
        if self._closed:
            return self._behind_call(call)
        own_end = form.call_text.partition("$arguments")[2].strip() if self._by_name(call[0]) else ""
        marks = (
            (form.call_end, own_end) if form.call_end else (*self._begins, *form.delimiters, form.answer_end)
        )
        if not call[0] and form.call_opening:
            marks = ()  # the whole answer
        place, mark = _find(self._text, tuple(filter(None, marks)))
        other = self._note_quotes(self._text[:place], bare)
        if other is not None:
            place, mark = other, ""
        call.append(self._text[:place])
        self._text = self._text[place + len(mark) :]
        if other is not None:
            self._end_call("", complete=False)
            return True
        if not mark:
            return False
        if mark == own_end:
            call.append(mark)
            self._closed = True
        elif self._quoted:  # the mark is part of an argument
            self._note_quotes(mark, bare)
            call.append(mark)
        elif form.call_end:
            self._end_call(mark)
        else:
            self._end_call("")
            if mark in self._begins:
                self._begin_call(mark)
        return True

    def _note_quotes(self, text: str, bare: bool) -> int | None:
        """The place of other text behind the JSON of a call without a mark, `bare`; None: there is none."""
        quotes = _BARE_JSON if bare else _QUOTES.get(self._form.call_syntax)
        if quotes is None:
            return None
        before, self._escape = self._escape, ""
        for found in quotes.finditer(before + text):
            part = found[0]
            if self._depth == 0 and part not in _OPEN:
                return found.start() - len(before)
            if part == "\\":
                self._escape = part
            elif part in _QUOTE and self._quoted in ("", part):
                self._quoted = "" if self._quoted else part
            elif bare and not self._quoted and part in _BRACKETS:
                self._depth = (self._depth or 0) + (1 if part in _OPEN else -1)
        return None

    def _end_call(self, mark: str, complete: bool = True, lost: bool = False, cut: bool = False) -> None:
        """`complete`: it may be a call. `lost`: if it is none, it is not content either. `cut`: of several
        calls the last one may have no end."""
        assert self._call is not None
        begin, *body = self._call
        self._call = None
        rest = "".join(body)
        text = (self._begins.get(begin) or self._first.get(begin) or "") + rest
        bare = not (begin or text.startswith(tuple(self._form.call_opening)))
        calls = read_calls(text, self._form, self._functions, bare) if complete else None
        if calls is None and cut:
            calls = read_calls(ended_calls(text, self._form), self._form, self._functions, bare)
        if calls is None:
            if lost:
                self._space = ""
            else:
                self._say(begin + rest + mark)
            return
        self._found += calls
        self._begun = self._after_call = True
        self._space = ""

    def _calls_at_end(self) -> Sequence[Call]:
        """The calls with which a thought that was never closed ends: some models forget to close it.

        Before its end a call may be a quotation in the thought.
        """
        form, text = AnswerFormat(), ""
        form.CopyFrom(self._form)
        for name in ("thinking", "begun", "thought_begin", "call_first", "call_opening"):
            form.ClearField(name)
        found: Sequence[Call] = ()
        for noted in reversed(self._noted):
            text = "".join(noted) + text
            splitter = Splitter(form, self._functions)
            first, last = splitter.add(text), splitter.finish()
            if not (first.content or last.content):
                found = (*first.calls, *last.calls)
            elif found:
                break
        return found

    def _say_up_to(self, place: int, mark: str = "") -> None:
        """Deliver the text up to there. `mark`: follows it, and is left out."""
        self._say(self._text[self._given : place])
        used = place + len(mark)
        if self._noted:
            self._noted[-1].append(self._text[:used])
        self._text, self._given = self._text[used:], max(0, self._given - used)

    def _say(self, text: str) -> None:
        """Deliver text, all but white space at its end."""
        said = text.rstrip()
        if not said:
            self._space += text
            return
        whole = self._space + said
        if self._skip_space:
            whole = whole.lstrip()
        self._space, self._skip_space, self._begun = text[len(said) :], False, True
        self._after_call, self._after_end = self._after_call and self.thinking, False
        (self._reasoning if self.thinking else self._content).append(whole)


def _named(marks: Iterable[str], functions: Functions, call: str) -> dict[str, str]:
    """Marks with names of functions in place of `$name`, and what of each is part of a call's text.

    `call`: `AnswerFormat.call_text`.
    """
    found: dict[str, str] = {}
    for mark in marks:
        head, place, tail = mark.partition("$name")
        own = head if call.startswith(head) else ""
        found |= {f"{head}{name}{tail}": own + name + tail for name in functions} if place else {mark: ""}
    return found


def _find(text: str, marks: tuple[str, ...]) -> tuple[int, str]:
    """The first of the marks in the text, of those in one place the longest, and where it is.

    No mark: the text up to that place cannot be part of one, whatever comes.
    """
    first, found = len(text), ""
    marks = tuple(mark for mark in marks if mark[0] in text)  # few are, of those with names of functions
    for mark in marks:
        place = text.find(mark)
        if place >= 0 and (place, -len(mark)) < (first, -len(found)):
            first, found = place, mark
    for mark in marks:
        # The beginning of a mark at the end of the text, in front of what was found or longer than that.
        place = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while 0 <= place <= first:
            if (place < first or len(mark) > len(found)) and mark.startswith(text[place:]):
                first, found = place, ""
                break
            place = text.find(mark[0], place + 1)
    return first, found


@lru_cache(maxsize=16)
def _sorted(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of functions without white space, for all answers to a request."""
    return tuple(sorted("".join(name.split()) for name in names))


_HEADS = tuple(f'{begin}{{"name":"' for begin in ("", "[", "```json", "```json[", "```", "```["))
"""What is before a function's name in a call in JSON without white space, which may be in a block of code."""
_OPEN, _BRACKETS, _QUOTE = frozenset("{["), frozenset("{[]}"), frozenset("\"'")
_BARE_JSON = re.compile(r"""\\.|\\|["{}\[\]]|[^\s`;,"'\\{}\[\]]+""", re.DOTALL)
"""Strings, brackets, and what may not stand behind the JSON of a call without a mark."""
_JSON_QUOTES = re.compile(r'\\.|\\|"', re.DOTALL)
_QUOTES = {
    JSON_CALLS: _JSON_QUOTES,
    NAMED_JSON: _JSON_QUOTES,
    PYTHON_CALLS: re.compile(r"""\\.|\\|["']""", re.DOTALL),
}
