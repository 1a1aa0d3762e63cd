"""How one model spells thoughts and calls of functions, as its chat template tells.

The gateway splits the text by the entry (`AnswerFormat` in proto/tokenizer.proto); here it is chosen, and its
marks stay in the text although they may be special tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from proto.tokenizer_pb2 import JSON_CALLS, NAMED_JSON, PYTHON_CALLS, AnswerFormat, Conversation
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.entry import JSON, LINE, NONE, CallFormat, ThoughtFormat
from tokenizer_svc.formats.mark_suffix import named, without_suffix
from tokenizer_svc.formats.thought_table import THOUGHTS
from tokenizer_svc.model.token_bytes import TokenBytes
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.templates.tools_as_text import Spelling

MOST_BUDGET = 2**20
"""A higher budget of thinking tokens is the same as none: no context is longer."""
LAST_TOKENS = 32
"""Tokens at the end of a prompt in which a thought or a message may begin."""


@dataclass(frozen=True)
class ThoughtRules:
    """What an answer that follows a grammar may begin with."""

    thoughts: str
    """Name of the format of thoughts; "" if there is to be none."""
    special: Mapping[str, int]
    """Tokens of the model's formats that are special to a grammar, see `special_tokens.py`: text -> id."""
    thinking: bool = False
    """The prompt has begun a thought."""
    budget: int | None = None
    """Tokens of the thought at most."""
    within: str = ""
    """With a budget: numbers of the tokens that neither begin nor end anything, as in "0-255,258-4095"."""
    begin: int = 0
    """With a budget: the token that begins a thought."""
    end: int = 0
    """With a budget: the token that ends a thought."""


class Formats:
    """The formats of one model."""

    def __init__(self, model: TextModel, calls: str = "", thoughts: str = "") -> None:
        """`calls`, `thoughts`: names of formats; empty: those that the model's chat template tells of."""
        source, with_tools = model.template or "", model.tool_template or model.template or ""
        self.call_name = calls or _told(CALLS, with_tools) or _by_token(model)
        self.thought_name = thoughts or _told(THOUGHTS, source + with_tools) or NONE
        self.calls, self.thoughts = named(CALLS, self.call_name), named(THOUGHTS, self.thought_name)
        self._others = {name: THOUGHTS[name] for name in (self.thoughts.others if self.thoughts else ())}
        every = [answer_format(self.calls, each) for each in (self.thoughts, *self._others.values())]
        everything = "\n".join(text for form in every for text in _strings(form))
        self.marks = {text: token for text, token in model.grammar_tokens.items() if text in everything}
        """Tokens that are special to a grammar, and that the formats are made of: text -> id."""
        marks = self.marks.values()
        self._model, self._every_token = model, model.every_token
        self.visible: TokenBytes = model.plain_tokens.showing(marks) if marks else model.plain_tokens
        """The bytes of all tokens; special tokens have none, but for those that the formats are made of."""

    @property
    def spelling(self) -> Spelling | None:
        """How calls are told as text to a template that knows none; None: they are not."""
        spelled = self.calls
        if spelled is None or spelled.syntax not in (JSON_CALLS, NAMED_JSON, PYTHON_CALLS):
            return None
        python, foreign = spelled.syntax == PYTHON_CALLS, self.call_name == JSON
        return Spelling(spelled.first, spelled.call, spelled.between or "", spelled.last, python, foreign)

    def of(self, tools: bool, prompt: list[int], said: str = "") -> AnswerFormat | None:
        """How the answer to a prompt is spelled. None: it is text alone.

        `tools`: functions are offered. `said`: the text that the answer goes on with, see `said_in`.
        """
        end = self._end(prompt)
        _, thoughts = self._thoughts(end, said)
        form = answer_format(self.calls if tools else None, thoughts)
        if thoughts is not None:
            form.thinking = _is_open(thoughts, end, said)
            form.begun = thoughts.message if end.endswith(thoughts.message) else ""
        return form if form.call_syntax or thoughts is not None else None

    def before(
        self, prompt: list[int], budget: int | None = None, lenient: bool = False, said: str = ""
    ) -> ThoughtRules:
        """What may come before an answer that follows a grammar.

        `budget`: tokens of the thought at most; None: any number. `lenient`: a budget that cannot be counted
        is passed over. `said`: as for `of`. Raises `InvalidRequestError` for a budget that is not.
        """
        end = self._end(prompt)
        name, thoughts = self._thoughts(end, said)
        # Where the prompt has closed the thought, none is to come.
        if thoughts is None or (end.endswith(thoughts.end) and not thoughts.message):
            return ThoughtRules("", self.marks)
        rules = ThoughtRules(name, self.marks, _is_open(thoughts, end, said))
        if budget is None:
            return rules
        marks = [self._model.encode(mark, special=False) for mark in (thoughts.begin, thoughts.end)]
        if thoughts.message or any(len(tokens) != 1 for tokens in marks):
            if lenient:
                return rules
            message = "this model marks its thoughts with several tokens, and they cannot be counted"
            raise InvalidRequestError("thinking_token_budget", message)
        (begins,), (ends,) = marks
        within = _ranges(self._model.vocab_size, {begins, ends, *self._model.end_tokens})
        return replace(rules, budget=min(budget, MOST_BUDGET), within=within, begin=begins, end=ends)

    def _thoughts(self, end: str, said: str) -> tuple[str, ThoughtFormat | None]:
        """How thoughts are spelled after a prompt that ends so, and the name of that."""
        for name, entry in self._others.items():
            if end.endswith(entry.end) or _is_open(entry, end, said):
                return name, entry
        return self.thought_name, self.thoughts

    def _end(self, prompt: list[int]) -> str:
        end = b"".join(self._every_token[token] for token in prompt[-LAST_TOKENS:])
        return end.decode(errors="replace").rstrip()


def said_in(chat: Conversation) -> str:
    """The text that the answer goes on with; empty: it begins anew."""
    return chat.messages[-1].content if chat.continue_final_message and chat.messages else ""


def answer_format(calls: CallFormat | None, thoughts: ThoughtFormat | None) -> AnswerFormat:
    """How answers are split that have calls and thoughts spelled so; None: they have none."""
    form = AnswerFormat()
    if thoughts is not None:
        form.thought_begin, form.thought_end = thoughts.begin, thoughts.end
        form.thoughts_anywhere = bool(thoughts.message)
        form.delimiters.extend((*thoughts.delimiters, *[thoughts.end] * thoughts.bare_end))
        if not thoughts.delimiters:
            around = (each.replace(LINE, "") for each in (thoughts.answer, thoughts.closing))
            form.answer_begin, form.answer_end = around
    if calls is not None:
        form.call_begin.extend(calls.begin)
        form.call_first.extend(calls.begin_first)
        form.call_end, form.call_opening = calls.end, calls.opening
        form.call_syntax, form.call_header = calls.syntax, calls.header
        form.call_bare = calls.syntax == JSON_CALLS
        form.delimiters.extend(calls.delimiters)
        texts = (_within(calls), calls.argument, calls.arguments)
        form.call_text, form.argument_text, form.arguments_text = (each.replace(LINE, "\n") for each in texts)
    return form


def _is_open(thoughts: ThoughtFormat, end: str, said: str) -> bool:
    """Whether a prompt that ends so has begun a thought. `said`: as for `Formats.of`."""
    if not thoughts.begin:
        return False
    if not said:
        return end.endswith(thoughts.begin)
    if thoughts.message:
        _, begin, thought = said.rpartition(thoughts.begin)
        return begin != "" and thoughts.end not in thought
    # Behind a text, which may tell of it, the mark begins nothing.
    return all(part.lstrip().startswith(thoughts.begin) for part in said.split(thoughts.end))


def _within(calls: CallFormat) -> str:
    """One call, without what begins and ends it."""
    text = calls.call.removesuffix(calls.end)
    for begin in calls.begin:
        text = text.removeprefix(begin.partition("$")[0])
    return text.strip()


def _ranges(size: int, without: set[int]) -> str:
    """The numbers below `size` that are not among those, as "FIRST-LAST,…"."""
    bounds = sorted({-1, size, *without})
    pairs = [(low + 1, high - 1) for low, high in pairwise(bounds) if high - low > 1]
    return ",".join(f"{low}-{high}" for low, high in pairs)


def _told(table: Mapping[str, CallFormat] | Mapping[str, ThoughtFormat], template: str) -> str:
    """The name of the first format that the template tells of; empty if it does of none."""
    template, suffix = without_suffix(template)
    for name, entry in table.items():
        if any(all(sign in template for sign in signs) for signs in entry.signs):
            return name + suffix
    return ""


def _by_token(model: TextModel) -> str:
    """The name of the format of calls of a model whose template tells of none."""
    if model.template is None:
        return NONE
    return next((name for name, entry in CALLS.items() if entry.token in model.special_tokens), JSON)


def _strings(form: AnswerFormat) -> Iterable[str]:
    # A header's marks are escaped there.
    yield form.call_header.replace("\\", "")
    yield from (form.thought_begin, form.thought_end, form.call_end, form.answer_begin, form.answer_end)
    yield from (*form.call_begin, *form.call_first, *form.delimiters)
    yield from (form.call_text, form.argument_text, form.arguments_text)
