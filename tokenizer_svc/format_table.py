"""How models spell thoughts and calls of functions: one entry a format. `formats.py` chooses a model's."""

from collections.abc import Mapping
from dataclasses import dataclass

from proto.tokenizer_pb2 import (
    BARE_KEYS,
    ELEMENTS,
    JSON_CALLS,
    NAMED_JSON,
    PYTHON_CALLS,
    CallSyntax,
)

NONE = "none"
"""Name of the format that spells nothing."""
JSON = "json"
"""Name of the format of calls of models whose chat template tells of none."""


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
    digits, `$id` for an identifier of small letters and digits, `$space` for a space or nothing."""
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
_DSML = {
    "call": '<｜DSML｜invoke name="$name">\n$arguments</｜DSML｜invoke>\n',
    "argument": '<｜DSML｜parameter name="$key" string="$text">$value</｜DSML｜parameter>\n',
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
        header=r"(?P<name>[^<>{\n]*?[^<>{\s])(?:\s*<\|channel\|>(?:commentary|analysis))?"
        r"(?:\s*<\|constrain\|>)?(?:\s*(?:json|code))?\s*<\|message\|>",
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
        syntax=ELEMENTS,
        begin=("<｜DSML｜function_calls>",),
        end="</｜DSML｜function_calls>",
        first="<｜DSML｜function_calls>\n",
        last="</｜DSML｜function_calls>",
        **_DSML,  # type: ignore[arg-type]
    ),
    "deepseek_v4": CallFormat(
        signs=(("｜DSML｜", "tool_calls"),),
        syntax=ELEMENTS,
        begin=("<｜DSML｜tool_calls>",),
        end="</｜DSML｜tool_calls>",
        first="<｜DSML｜tool_calls>\n",
        last="</｜DSML｜tool_calls>",
        **_DSML,  # type: ignore[arg-type]
    ),
    "minimax_m2": CallFormat(
        signs=(("<minimax:tool_call>",),),
        syntax=ELEMENTS,
        begin=("<minimax:tool_call>",),
        end="</minimax:tool_call>",
        call='<invoke name="$name">\n$arguments</invoke>\n',
        argument='<parameter name="$key">$value</parameter>\n',
        first="<minimax:tool_call>\n",
        last="</minimax:tool_call>",
    ),
    "seed_oss": CallFormat(
        signs=(("<seed:tool_call>",),),
        syntax=ELEMENTS,
        begin=("<seed:tool_call>",),
        end="</seed:tool_call>",
        call="<seed:tool_call>\n<function=$name>\n$arguments</function>\n</seed:tool_call>",
        argument="<parameter=$key>\n$value\n</parameter>\n",
        between="\n",
    ),
    "hy3": CallFormat(
        signs=(("<tool_sep", ":opensource"),),
        syntax=ELEMENTS,
        begin=("<tool_call:opensource>",),
        end="</tool_call:opensource>",
        delimiters=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        call="<tool_call:opensource>$name<tool_sep:opensource>\n$arguments</tool_call:opensource>",
        argument="<arg_key:opensource>$key</arg_key:opensource>\n"
        "<arg_value:opensource>$value</arg_value:opensource>\n",
        first="<tool_calls:opensource>\n",
        between="\n",
        last="\n</tool_calls:opensource>",
    ),
    "minicpm5": CallFormat(
        signs=(("<function name=", "<param name="),),
        syntax=ELEMENTS,
        begin=("<function name=",),
        end="</function>",
        call='<function name="$name">$arguments</function>',
        argument='<param name="$key"><![CDATA[$value]]></param>',
        between="\n",
    ),
    "solar_open": CallFormat(
        signs=(("<|tool_call:begin|>", "<|tool_call:args|>"),),
        syntax=NAMED_JSON,
        begin=("<|tool_call:begin|>",),
        end="<|tool_call:end|>",
        header=r"(?P<id>\w*)<\|tool_call:name\|>(?P<name>.+?)<\|tool_call:args\|>",
        delimiters=("<|tool_calls|>", "<|calls|>"),
        call="<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>$arguments<|tool_call:end|>",
        first="<|tool_calls|>",
        last="<|calls|>",
    ),
    "gigachat3": CallFormat(
        signs=(("'function call'", "<|role_sep|>"),),
        syntax=JSON_CALLS,
        begin=("<|message_sep|>\n\nfunction call<|role_sep|>",),
        end="<|message_sep|>",
        delimiters=("<|message_sep|>",),
        call=_JSON,
        first="<|message_sep|>\n\nfunction call<|role_sep|>\n",
        between=None,
    ),
    "gigachat31": CallFormat(
        signs=(("<|function_call|>",),),
        syntax=JSON_CALLS,
        begin=("<|function_call|>",),
        end="<|message_sep|>",
        call=f"<|function_call|>{_JSON}",
        between=None,
    ),
    "apertus": CallFormat(
        signs=(("<|tools_prefix|>", "<|tools_suffix|>"),),
        syntax=JSON_CALLS,
        begin=("<|tools_prefix|>",),
        end="<|tools_suffix|>",
        call='{"$name": $arguments}',
        first="<|tools_prefix|>[",
        between=", ",
        last="]<|tools_suffix|>",
    ),
    "apriel": CallFormat(
        signs=(("<tool_calls>[",),),
        syntax=JSON_CALLS,
        begin=("<tool_calls>",),
        end="</tool_calls>",
        call=_JSON,
        first="<tool_calls>[",
        between=", ",
        last="]</tool_calls>",
    ),
    "minimax_m1": CallFormat(
        signs=(("<tool_calls>",),),
        syntax=JSON_CALLS,
        begin=("<tool_calls>",),
        end="</tool_calls>",
        call=_JSON,
        first="<tool_calls>\n",
        between="\n",
        last="\n</tool_calls>",
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
        syntax=ELEMENTS,
        begin=("<tool_call>",),
        end="</tool_call>",
        call="<tool_call>$name\n$arguments</tool_call>",
        argument="<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n",
        between="\n",
    ),
    "qwen3_coder": CallFormat(
        signs=(("<tool_call>", "<function="),),
        syntax=ELEMENTS,
        begin=("<tool_call>",),
        end="</tool_call>",
        call="<tool_call>\n<function=$name>\n$arguments</function>\n</tool_call>",
        argument="<parameter=$key>\n$value\n</parameter>\n",
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
        header=r"(?P<name>[^\[\]{\n]+)(?:\[CALL_ID\](?P<id>\w+))?\[ARGS\]",
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
    "hy3": ThoughtFormat(
        signs=(("think_begin_token", ":opensource"),),
        begin="<think:opensource>",
        end="</think:opensource>",
    ),
    "apriel": ThoughtFormat(
        signs=(("[BEGIN FINAL RESPONSE]",),),
        begin="Here are my reasoning steps:",
        end="[BEGIN FINAL RESPONSE]",
        delimiters=("[END FINAL RESPONSE]",),
    ),
    "apertus": ThoughtFormat(
        signs=(("<|inner_prefix|>",),), begin="<|inner_prefix|>", end="<|inner_suffix|>"
    ),
    "solar_open": ThoughtFormat(
        signs=(("<|think|>", "<|content|>"),),
        begin="<|think|>",
        end="<|end|>",
        delimiters=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    "minimax_m3": ThoughtFormat(signs=(("<mm:think>",),), begin="<mm:think>", end="</mm:think>"),
    "seed_oss": ThoughtFormat(signs=(("<seed:think>",),), begin="<seed:think>", end="</seed:think>"),
    "magistral": ThoughtFormat(signs=(("[THINK]", "[/THINK]"),), begin="[THINK]", end="[/THINK]"),
    "think": ThoughtFormat(signs=(("</think>",), ("<think>",)), begin="<think>", end="</think>"),
}
