"""How models spell calls of functions: one entry a format."""

from collections.abc import Mapping

from proto.tokenizer_pb2 import BARE_KEYS, ELEMENTS, JSON_CALLS, NAMED_JSON, NESTED, PYTHON_CALLS
from tokenizer_svc.format_entry import JSON, CallFormat

_DEEPSEEK = {
    "begin": ("<｜tool▁call▁begin｜>",),
    "end": "<｜tool▁call▁end｜>",
    "delimiters": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "first": "<｜tool▁calls▁begin｜>",
    "last": "<｜tool▁calls▁end｜>",
}
_JSON = '{"name": "$name", "arguments": $arguments}'


def _marked(*signs: str, mark: str, calls: str) -> CallFormat:
    """DeepSeek's elements. `mark`: stands in every tag. `calls`: the element around all calls."""
    return CallFormat(
        signs=(signs,),
        syntax=ELEMENTS,
        begin=(f"<{mark}{calls}>",),
        end=f"</{mark}{calls}>",
        call=f'<{mark}invoke name="$name">\n$arguments</{mark}invoke>\n',
        argument=f'<{mark}parameter name="$key" string="$text">$value</{mark}parameter>\n',
        first=f"<{mark}{calls}>\n",
        last=f"</{mark}{calls}>",
    )


def _keyed(
    *signs: str, prefix: str = "", suffix: str = "", separator: str = "", around: str = ""
) -> CallFormat:
    """GLM's elements: a key, then its value. `prefix`, `suffix`: of the names of tags. `separator`: follows a
    function's name. `around`: the element around all calls. Some models write new lines, others do not."""

    def tags(name: str) -> tuple[str, str]:
        return f"<{prefix}{name}{suffix}>", f"</{prefix}{name}{suffix}>"

    (begin, end), (key, key_end), (value, value_end) = map(tags, ("tool_call", "arg_key", "arg_value"))
    first, last = tags(around) if around else ("", "")
    return CallFormat(
        signs=(signs,),
        syntax=ELEMENTS,
        begin=(begin,),
        end=end,
        delimiters=(first, last) if around else (),
        call=f"{begin}$name{separator}\n?$arguments{end}",
        argument=f"{key}$key{key_end}\n?{value}$value{value_end}\n?",
        first=f"{first}\n?" if around else "",
        between="\n?",
        last=f"\n?{last}" if around else "",
    )


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
    "kimi_k3": CallFormat(
        signs=(("<|open|>", "<|close|>"),),
        syntax=ELEMENTS,
        begin=("<|open|>tools<|sep|>",),
        end="<|close|>tools<|sep|>",
        delimiters=("<|close|>response<|sep|>",),
        call='<|open|>call tool="$name|e" index="$number"<|sep|>$arguments<|close|>call<|sep|>',
        argument='<|open|>argument key="$key|e" type="$type"<|sep|>$value<|close|>argument<|sep|>',
        arguments='<|open|>json type="object"<|sep|>$arguments<|close|>json<|sep|>',
        first="<|close|>response<|sep|><|open|>tools<|sep|>",
        last="<|close|>tools<|sep|>",
    ),
    "muse_glimmer": CallFormat(
        signs=(("<atem:function_calls>",),),
        syntax=ELEMENTS,
        begin=("<|start|>assistant to=$name<|message|>",),
        end="</atem:function_calls>",
        delimiters=("<|eom|>",),
        call='<|start|>assistant to=$recipient<|message|><atem:function_calls>\n<atem:invoke name="$name">\n'
        "$arguments</atem:invoke>\n</atem:function_calls>",
        argument='<atem:parameter name="$key">$value</atem:parameter>\n',
        between="<|eom|>",
    ),
    "functionary31": CallFormat(
        signs=(("<{start_tag}={function_name}>{parameters}{end_tag}",),),
        syntax=NAMED_JSON,
        begin=("<function=",),
        end="</function>",
        header=r"(?P<name>.+?)>",
        call="<function=$name>$arguments</function>",
    ),
    "functionary32": CallFormat(
        signs=((">>>${recipient}",),),
        syntax=NAMED_JSON,
        begin=(">>>$name\n",),
        header="(?P<name>.+)",
        call=">>>$name\n$arguments",
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
    "deepseek_v41": _marked("｜DSML｜", " calls>", mark="｜DSML｜ ", calls="calls"),
    "deepseek_v32": _marked("｜DSML｜", "function_calls", mark="｜DSML｜", calls="function_calls"),
    "deepseek_v4": _marked("｜DSML｜", "tool_calls", mark="｜DSML｜", calls="tool_calls"),
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
    "minimax_m3": CallFormat(
        signs=(("]<]minimax[>[", "<tool_call>"),),
        syntax=NESTED,
        begin=("]<]minimax[>[<tool_call>",),
        end="]<]minimax[>[</tool_call>",
        call=']<]minimax[>[<invoke name="$name">$arguments]<]minimax[>[</invoke>\n',
        argument="]<]minimax[>[<$key>$value]<]minimax[>[</$key>",
        first="]<]minimax[>[<tool_call>\n",
        last="]<]minimax[>[</tool_call>",
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
    "hy3": _keyed(
        *("<tool_sep", ":opensource"),
        suffix=":opensource",
        separator="<tool_sep:opensource>",
        around="tool_calls",
    ),
    "hy3_plain": _keyed("<tool_calls>", "<tool_sep>", separator="<tool_sep>", around="tool_calls"),
    "hy4": _keyed("<arg_key", ":6124c78e", suffix=":6124c78e", around="tool_calls"),
    "hy4_opensource": _keyed("<arg_key", ":opensource", suffix=":opensource", around="tool_calls"),
    "hy4_plain": _keyed("<tool_calls>", "<arg_key>", around="tool_calls"),
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
    "gigachat35": _marked("｜GCML｜", mark="｜GCML｜", calls="tool_calls"),
    "longcat": _keyed("<longcat_tool_call>", "<longcat_arg_key>", prefix="longcat_"),
    "longcat_json": CallFormat(
        signs=(("<longcat_tool_call>",),),
        syntax=JSON_CALLS,
        begin=("<longcat_tool_call>",),
        end="</longcat_tool_call>",
        call=f"<longcat_tool_call>\n{_JSON}\n</longcat_tool_call>",
        between="\n",
    ),
    "olmo3": CallFormat(
        signs=(("<function_calls>",),),
        syntax=PYTHON_CALLS,
        begin=("<function_calls>",),
        end="</function_calls>",
        call="$name($arguments)",
        first="<function_calls>\n",
        between="\n",
        last="\n</function_calls>",
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
    "glm": _keyed("<tool_call>", "<arg_key>"),
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
