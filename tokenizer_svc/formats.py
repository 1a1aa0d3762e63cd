"""How models spell thoughts and calls of functions: one entry a format, which the chat template chooses.

The gateway splits the text by the entry (`AnswerFormat` in proto/tokenizer.proto); here it is chosen, and its
marks stay in the text although they may be special tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from proto.tokenizer_pb2 import (
    BARE_KEYS,
    JSON_CALLS,
    NAMED_JSON,
    PYTHON_CALLS,
    XML_INVOKES,
    XML_PAIRS,
    XML_PARAMETERS,
    AnswerFormat,
    CallSyntax,
)
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.token_bytes import TokenBytes
from tokenizer_svc.tokenizer import TextModel
from tokenizer_svc.tools_as_text import Spelling

NONE = "none"
"""Name of the format that spells nothing."""
JSON = "json"
"""Name of the format of calls of models whose chat template tells of none."""
MOST_BUDGET = 2**20
"""A higher budget of thinking tokens is the same as none: no context is longer."""
LAST_TOKENS = 16
"""Tokens at the end of a prompt in which a thought may begin."""


@dataclass(frozen=True)
class CallFormat:
    """How calls are spelled. Fields without a line here are those of `AnswerFormat`."""

    signs: tuple[tuple[str, ...], ...]
    """A template that has all texts of one of these is of a model with this format. Empty: none tells."""
    syntax: CallSyntax
    begin: tuple[str, ...] = ()
    begin_first: tuple[str, ...] = ()
    """Field `call_first` of `AnswerFormat`."""
    end: str = ""
    opening: str = ""
    header: str = ""
    delimiters: tuple[str, ...] = ()
    call: str = ""
    """One call as the model writes it. `$name` and `$arguments` stand for what they say, `$number` for
    digits, `$space` for a space or nothing."""
    argument: str = ""
    """One argument, if each is an element of XML: `$key`, `$value`, and `$text` for `true` if the value is a
    text as it stands, and `false` if it is JSON."""
    first: str = ""
    """Before the first call."""
    between: str | None = ""
    """Between two calls. None: there is one call at most."""
    last: str = ""
    """After the last call."""
    token: str = ""
    """A special token that tells of the format, if the template does of none."""


@dataclass(frozen=True)
class ThoughtFormat:
    """How thoughts are spelled. Fields without a line here are those of `AnswerFormat`."""

    signs: tuple[tuple[str, ...], ...]
    """As in `CallFormat`."""
    begin: str
    end: str
    anywhere: bool = False
    delimiters: tuple[str, ...] = ()


_DEEPSEEK = {
    "begin": ("<｜tool▁call▁begin｜>",),
    "end": "<｜tool▁call▁end｜>",
    "delimiters": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "first": "<｜tool▁calls▁begin｜>",
    "last": "<｜tool▁calls▁end｜>",
}
_JSON = '{"name": "$name", "arguments": $arguments}'

# The first format whose signs a template has is the model's. So the one with more signs stands first.
CALLS: Mapping[str, CallFormat] = {
    "harmony": CallFormat(
        signs=(("<|channel|>", "functions."),),
        syntax=NAMED_JSON,
        begin=(
            "<|channel|>commentary to=functions.",
            "<|channel|>analysis to=functions.",
            "<|start|>assistant to=functions.",
        ),
        begin_first=("to=functions.",),  # behind the prompt's <|start|>assistant
        end="<|call|>",
        header=r"(?P<name>[\w.-]+?)\s*(?:<\|channel\|>(?:commentary|analysis))?"
        r"\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*<\|message\|>",
        call="<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments",
        between=None,
    ),
    "kimi_k2": CallFormat(
        signs=(("<|tool_calls_section_begin|>",),),
        syntax=NAMED_JSON,
        begin=("<|tool_call_begin|>",),
        end="<|tool_call_end|>",
        header=r"(?P<id>(?:functions\.)?(?P<name>.+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
        delimiters=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call="<|tool_call_begin|>functions.$name:$number<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
        first="<|tool_calls_section_begin|>",
        last="<|tool_calls_section_end|>",
    ),
    "deepseek_v3": CallFormat(
        signs=(("<｜tool▁calls▁begin｜>", "```json"),),
        syntax=NAMED_JSON,
        header=r"function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name\n```json\n$arguments\n```<｜tool▁call▁end｜>",
        between="\n",
        **_DEEPSEEK,  # type: ignore[arg-type]
    ),
    "deepseek_v31": CallFormat(
        signs=(("<｜tool▁calls▁begin｜>",),),
        syntax=NAMED_JSON,
        header=r"(?P<name>.+?)\s*<｜tool▁sep｜>",
        call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
        **_DEEPSEEK,  # type: ignore[arg-type]
    ),
    "deepseek_v32": CallFormat(
        signs=(("｜DSML｜", "function_calls"),),
        syntax=XML_INVOKES,
        begin=("<｜DSML｜function_calls>",),
        end="</｜DSML｜function_calls>",
        call='<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>\n',
        argument='<｜DSML｜parameter name="$key" string="$text">$value</｜DSML｜parameter>',
        first="<｜DSML｜function_calls>\n",
        last="</｜DSML｜function_calls>",
    ),
    "minimax_m2": CallFormat(
        signs=(("<minimax:tool_call>",),),
        syntax=XML_INVOKES,
        begin=("<minimax:tool_call>",),
        end="</minimax:tool_call>",
        call='<invoke name="$name">\n$arguments</invoke>\n',
        argument='<parameter name="$key">$value</parameter>',
        first="<minimax:tool_call>\n",
        last="</minimax:tool_call>",
    ),
    "seed_oss": CallFormat(
        signs=(("<seed:tool_call>",),),
        syntax=XML_PARAMETERS,
        begin=("<seed:tool_call>",),
        end="</seed:tool_call>",
        call="<seed:tool_call>\n<function=$name>\n$arguments</function>\n</seed:tool_call>",
        argument="<parameter=$key>\n$value\n</parameter>",
        between="\n",
    ),
    "nemotron": CallFormat(
        signs=(("<TOOLCALL>",),),
        syntax=JSON_CALLS,
        begin=("<TOOLCALL>",),
        end="</TOOLCALL>",
        call=_JSON,
        first="<TOOLCALL>[",
        between=", ",
        last="]</TOOLCALL>",
    ),
    "cohere": CallFormat(
        signs=(("<|START_ACTION|>",),),
        syntax=JSON_CALLS,
        begin=("<|START_ACTION|>",),
        end="<|END_ACTION|>",
        call='{"tool_call_id": "$number", "tool_name": "$name", "parameters": $arguments}',
        first="<|START_ACTION|>[",
        between=", ",
        last="]<|END_ACTION|>",
    ),
    "gemma4": CallFormat(
        signs=(("<|tool_call>", "<tool_call|>"),),
        syntax=BARE_KEYS,
        begin=("<|tool_call>",),
        end="<tool_call|>",
        delimiters=('<|"|>',),
        call="<|tool_call>call:$name{$arguments}<tool_call|>",
    ),
    "glm": CallFormat(
        signs=(("<tool_call>", "<arg_key>"),),
        syntax=XML_PAIRS,
        begin=("<tool_call>",),
        end="</tool_call>",
        call="<tool_call>$name\n$arguments</tool_call>",
        argument="<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>",
        between="\n",
    ),
    "qwen3_coder": CallFormat(
        signs=(("<tool_call>", "<function="),),
        syntax=XML_PARAMETERS,
        begin=("<tool_call>",),
        end="</tool_call>",
        call="<tool_call>\n<function=$name>\n$arguments</function>\n</tool_call>",
        argument="<parameter=$key>\n$value\n</parameter>",
        between="\n",
    ),
    "hermes": CallFormat(
        signs=(("<tool_call>",),),
        syntax=JSON_CALLS,
        begin=("<tool_call>",),
        end="</tool_call>",
        call=f"<tool_call>\n{_JSON}\n</tool_call>",
        between="\n",
    ),
    "phi4": CallFormat(
        signs=(("<|/tool|>",),),
        syntax=JSON_CALLS,
        begin=("<|tool_call|>",),
        begin_first=("functools",),
        end="<|/tool_call|>",
        opening="{[",
        call=_JSON,
        first="<|tool_call|>[",
        between=", ",
        last="]<|/tool_call|>",
    ),
    "granite": CallFormat(
        signs=(("<|tool_call|>",),),
        syntax=JSON_CALLS,
        begin=("<|tool_call|>",),
        call=_JSON,
        first="<|tool_call|>[",
        between=", ",
        last="]",
    ),
    "mistral_args": CallFormat(
        signs=(("[TOOL_CALLS]", "[ARGS]"),),
        syntax=NAMED_JSON,
        begin=("[TOOL_CALLS]",),
        header=r"(?P<name>[\w.-]+)(?:\[CALL_ID\](?P<id>\w+))?\[ARGS\]",
        call="[TOOL_CALLS]$name[ARGS]$arguments",
    ),
    "mistral": CallFormat(
        signs=(("[TOOL_CALLS]",),),
        syntax=JSON_CALLS,
        begin=("[TOOL_CALLS]",),
        call=_JSON,
        first="[TOOL_CALLS]$space[",
        between=", ",
        last="]",
    ),
    "lfm2": CallFormat(
        signs=(("<|tool_list_start|>",), ("<|tool_call_start|>",)),
        syntax=PYTHON_CALLS,
        begin=("<|tool_call_start|>",),
        end="<|tool_call_end|>",
        call="$name($arguments)",
        first="<|tool_call_start|>[",
        between=", ",
        last="]<|tool_call_end|>",
        token="<|tool_call_start|>",
    ),
    "pythonic": CallFormat(
        signs=(("[func_name1(",),),
        syntax=PYTHON_CALLS,
        begin=("<|python_start|>",),
        end="<|python_end|>",
        opening="[",
        call="$name($arguments)",
        first="[",
        between=", ",
        last="]",
    ),
    "llama3_json": CallFormat(
        signs=(("<|start_header_id|>", '"parameters"'),),
        syntax=JSON_CALLS,
        begin=("<|python_tag|>",),
        opening="{",
        call=_JSON.replace('arguments"', 'parameters"'),
        between="; ",
    ),
    JSON: CallFormat(
        signs=(), syntax=JSON_CALLS, opening="{[", call=_JSON, first="[", between=", ", last="]"
    ),
}

THOUGHTS: Mapping[str, ThoughtFormat] = {
    "harmony": ThoughtFormat(
        signs=(("<|channel|>", "analysis"),),
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        anywhere=True,
        delimiters=(
            "<|start|>assistant",
            *(
                f"<|channel|>{channel}{content}<|message|>"
                for channel in ("final", "commentary")
                for content in ("", " json", "<|constrain|>json", " <|constrain|>json")
            ),
            "<|end|>",
        ),
    ),
    "gemma4": ThoughtFormat(
        signs=(("<|channel>", "<channel|>"),), begin="<|channel>thought", end="<channel|>"
    ),
    "cohere": ThoughtFormat(
        signs=(("<|START_THINKING|>",),),
        begin="<|START_THINKING|>",
        end="<|END_THINKING|>",
        delimiters=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "seed_oss": ThoughtFormat(signs=(("<seed:think>",),), begin="<seed:think>", end="</seed:think>"),
    "magistral": ThoughtFormat(signs=(("[THINK]", "[/THINK]"),), begin="[THINK]", end="[/THINK]"),
    "think": ThoughtFormat(signs=(("</think>",), ("<think>",)), begin="<think>", end="</think>"),
}


@dataclass(frozen=True)
class ThoughtRules:
    """What an answer that follows a grammar may begin with."""

    thoughts: str
    """Name of the format of thoughts; "" if there is to be none."""
    special: Mapping[str, int]
    """Special tokens that occur in the model's formats: text -> id."""
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
        self.calls, self.thoughts = CALLS.get(self.call_name), THOUGHTS.get(self.thought_name)
        everything = "\n".join(_strings(self._form(calls=True)))
        self.marks = {text: token for text, token in model.special_tokens.items() if text in everything}
        """Special tokens that the formats are made of: text -> id."""
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

    def of(self, tools: bool, prompt: list[int]) -> AnswerFormat | None:
        """How the answer to a prompt is spelled. None: it is text alone. `tools`: functions are offered."""
        form = self._form(calls=tools)
        if not (form.thought_begin or form.call_syntax):
            return None
        if form.thought_begin:
            form.thinking = self._end(prompt).endswith(form.thought_begin)
        return form

    def before(self, prompt: list[int], budget: int | None = None, lenient: bool = False) -> ThoughtRules:
        """What may come before an answer that follows a grammar.

        `budget`: tokens of the thought at most; None: any number. `lenient`: a budget that cannot be counted
        is passed over. Raises `InvalidRequestError` for one that is not.
        """
        thoughts, end = self.thoughts, self._end(prompt)
        # Where the prompt has closed the thought, none is to come.
        if thoughts is None or (end.endswith(thoughts.end) and not thoughts.anywhere):
            return ThoughtRules("", self.marks)
        rules = ThoughtRules(self.thought_name, self.marks, end.endswith(thoughts.begin))
        if budget is None:
            return rules
        marks = [self._model.encode(mark, special=False) for mark in (thoughts.begin, thoughts.end)]
        if thoughts.anywhere or any(len(tokens) != 1 for tokens in marks):
            if lenient:
                return rules
            message = "this model marks its thoughts with several tokens, and they cannot be counted"
            raise InvalidRequestError("thinking_token_budget", message)
        (begins,), (ends,) = marks
        within = _ranges(self._model.vocab_size, {begins, ends, *self._model.end_tokens})
        return replace(rules, budget=min(budget, MOST_BUDGET), within=within, begin=begins, end=ends)

    def _end(self, prompt: list[int]) -> str:
        end = b"".join(self._every_token[token] for token in prompt[-LAST_TOKENS:])
        return end.decode(errors="replace").rstrip()

    def _form(self, calls: bool) -> AnswerFormat:
        form = AnswerFormat()
        if (thoughts := self.thoughts) is not None:
            form.thought_begin, form.thought_end = thoughts.begin, thoughts.end
            form.thoughts_anywhere = thoughts.anywhere
            form.delimiters.extend(thoughts.delimiters)
        if calls and (spelled := self.calls) is not None:
            form.call_begin.extend(spelled.begin)
            form.call_first.extend(spelled.begin_first)
            form.call_end, form.call_opening = spelled.end, spelled.opening
            form.call_syntax, form.call_header = spelled.syntax, spelled.header
            form.delimiters.extend(spelled.delimiters)
        return form


def _ranges(size: int, without: set[int]) -> str:
    """The numbers below `size` that are not among those, as "FIRST-LAST,…"."""
    bounds = sorted({-1, size, *without})
    pairs = [(low + 1, high - 1) for low, high in pairwise(bounds) if high - low > 1]
    return ",".join(f"{low}-{high}" for low, high in pairs)


def _told(table: Mapping[str, CallFormat] | Mapping[str, ThoughtFormat], template: str) -> str:
    """The name of the first format that the template tells of; empty if it does of none."""
    for name, entry in table.items():
        if any(all(sign in template for sign in signs) for signs in entry.signs):
            return name
    return ""


def _by_token(model: TextModel) -> str:
    """The name of the format of calls of a model whose template tells of none."""
    if model.template is None:
        return NONE
    return next((name for name, entry in CALLS.items() if entry.token in model.special_tokens), JSON)


def _strings(form: AnswerFormat) -> Iterable[str]:
    # A header's marks are escaped there.
    yield form.call_header.replace("\\", "")
    yield from (form.thought_begin, form.thought_end, form.call_end)
    yield from (*form.call_begin, *form.call_first, *form.delimiters)
