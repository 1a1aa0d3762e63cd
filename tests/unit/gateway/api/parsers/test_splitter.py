"""Every format, cut at any place: calls are calls with JSON for arguments, and everything else is text."""

import json
import random
import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.parsers.calls import Call, functions_of
from gateway.api.parsers.splitter import Pieces, Splitter
from proto.tokenizer_pb2 import AnswerFormat
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.formats import answer_format
from tokenizer_svc.formats.mark_suffix import named
from tokenizer_svc.formats.thought_table import THOUGHTS

SCHEMA = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "at": {"type": "object"}}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
FUNCTIONS = functions_of(TOOLS)
CITY = 'A "}</tool_call>[TOOL_CALLS]\\ é'
PLAIN = "Bergen, 5 < 7"
ARGUMENTS = json.dumps({"city": CITY, "days": 3})
SIMPLE = {"city": PLAIN, "days": 3, "at": {"x": [True]}}
TWO = [("weather", json.loads(ARGUMENTS)), ("clock", {})]
NS = "]<]minimax[>["
AS_JSON = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
CLOCK = '{"name": "clock", "parameters": {}}'


def hunyuan(separator: str = "", suffix: str = "") -> str:
    """Calls of Hunyuan. `suffix`: of its marks."""
    calls = (
        f"<tool_call>weather{separator}<arg_key>city</arg_key><arg_value>{PLAIN}</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value><arg_key>at</arg_key>"
        f'<arg_value>{{"x": [true]}}</arg_value></tool_call>\n<tool_call>clock{separator}</tool_call>'
    )
    return re.sub(r"(</?\w+)>", rf"\1{suffix}>", f"<tool_calls>\n{calls}\n</tool_calls>")


EXAMPLES = {
    "hermes": ("hermes", f"<tool_call>\n{AS_JSON}\n</tool_call>\n<tool_call>{CLOCK}</tool_call>", TWO),
    "granite": ("granite", f"<|tool_call|>[{AS_JSON}, {CLOCK}]", TWO),
    "mistral": ("mistral", f"[TOOL_CALLS] [{AS_JSON}, {CLOCK}]", TWO),
    "mistral_args": ("mistral_args", f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]clock[ARGS]{{}}", TWO),
    "llama3_json": ("llama3_json", f"\n{AS_JSON}; {CLOCK}", TWO),
    "python_tag": ("llama3_json", f"<|python_tag|>{AS_JSON}", TWO[:1]),
    "json": ("json", f"[{AS_JSON},\n{CLOCK}]", TWO),
    "deepseek_v3": (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n"
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "deepseek_v31": (
        "deepseek_v31",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "kimi_k2": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        TWO,
    ),
    "qwen3_coder": (
        "qwen3_coder",
        f"<tool_call>\n<function=weather>\n<parameter=city>\n{PLAIN}\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=at>{"x": [true]}</parameter>\n</function>\n</tool_call>',
        [("weather", SIMPLE)],
    ),
    "qwen3_coder_bare": (
        "qwen3_coder",
        f"<function=weather>\n<parameter=city>\n{PLAIN}\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=at>{"x": [true]}</parameter>\n</function>\n</tool_call>',
        [("weather", SIMPLE)],
    ),
    "gemma4": (
        "gemma4",
        f'<|tool_call>call:weather{{at:{{x:[true]}},city:<|"|>{PLAIN}<|"|>,days:3}}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "glm": (
        "glm",
        f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{PLAIN}</arg_value>\n<arg_key>days</arg_key>"
        '<arg_value>3</arg_value><arg_key>at</arg_key><arg_value>{"x": [true]}</arg_value></tool_call>',
        [("weather", SIMPLE)],
    ),
    "pythonic": (
        "pythonic",
        f"[weather(city={PLAIN!r}, days=3, at={{'x': [True]}}), clock()]",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "lfm2": (
        "lfm2",
        f"<|tool_call_start|>[weather(city={PLAIN!r}, days=3, at={{'x': [True]}}), clock()]<|tool_call_end|>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "minimax_m2": (
        "minimax_m2",
        f'<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">{PLAIN}</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="at">{"x": [true]}</parameter>\n</invoke>\n'
        '<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "deepseek_v32": (
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{PLAIN}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="at" string="false">{"x": [true]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "deepseek_v4": (
        "deepseek_v4",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{PLAIN}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="at">{"x": [true]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "deepseek_v41": (
        "deepseek_v41",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="weather">\n'
        f'<｜DSML｜ parameter name="city" string="true">{PLAIN}</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="at" string="false">{"x": [true]}</｜DSML｜ parameter>\n'
        '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="clock">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "gigachat35": (
        "gigachat35",
        '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="weather">\n'
        f'<｜GCML｜parameter name="city" string="true">{PLAIN}</｜GCML｜parameter>\n'
        '<｜GCML｜parameter name="days" string="false">3</｜GCML｜parameter>\n'
        '<｜GCML｜parameter name="at" string="false">{"x": [true]}</｜GCML｜parameter>\n</｜GCML｜invoke>\n'
        '<｜GCML｜invoke name="clock">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "longcat": (
        "longcat",
        f"<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>{PLAIN}"
        "</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3"
        "</longcat_arg_value>\n<longcat_arg_key>at</longcat_arg_key><longcat_arg_value>"
        '{"x": [true]}</longcat_arg_value>\n</longcat_tool_call>',
        [("weather", SIMPLE)],
    ),
    "longcat_json": ("longcat_json", f"<longcat_tool_call>\n{AS_JSON}\n</longcat_tool_call>", TWO[:1]),
    "olmo3": (
        "olmo3",
        f"<function_calls>\nweather(city={PLAIN!r}, days=3, at={{'x': [true]}})\nclock()\n</function_calls>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "hy3": ("hy3", hunyuan("<tool_sep>"), [("weather", SIMPLE), ("clock", {})]),
    "hy3_suffix": (
        "hy3:opensource",
        hunyuan("<tool_sep>", ":opensource"),
        [("weather", SIMPLE), ("clock", {})],
    ),
    "hy4": ("hy4", hunyuan(), [("weather", SIMPLE), ("clock", {})]),
    "hy4_suffix": ("hy4:6124c78e", hunyuan(suffix=":6124c78e"), [("weather", SIMPLE), ("clock", {})]),
    "k2_horizon": (
        "k2_horizon",
        re.sub(r"(</?)(\w)", r"\1ifm|\2", hunyuan()),
        [("weather", SIMPLE), ("clock", {})],
    ),
    "telechat4": (
        "telechat4",
        f"<tool_call>weather<param_key>city</param_key><param_value>{PLAIN}</param_value>"
        "<param_key>days</param_key><param_value>3</param_value><param_key>at</param_key><param_value>"
        '{"x": [true]}</param_value></tool_call>\n<tool_call>clock</tool_call>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "dots": (
        "dots",
        f'<dots_function_call>\n<invoke name="weather">\n<parameter name="city">{PLAIN}</parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="at">{"x": [true]}</parameter>\n</invoke>\n'
        '<invoke name="clock">\n</invoke>\n</dots_function_call>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "step3": (
        "step3",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        f'<steptml:invoke name="weather">\n<steptml:parameter name="city">{PLAIN}</steptml:parameter>\n'
        '<steptml:parameter name="days">3</steptml:parameter><steptml:parameter name="at">{"x": [true]}'
        "</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="clock"></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "solar_open2": (
        "solar_open2",
        f"<|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|>{PLAIN}<|tool_arg:end|>\n"
        "<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>\n<|tool_arg:start|>at<|tool_arg:value|>"
        '{"x": [true]}<|tool_arg:end|>\n<|tool_call:end|>\n<|tool_call:start|>clock\n<|tool_call:end|>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "plamo3": (
        "plamo3",
        "<|plamo:begin_tool_requests:plamo|>"
        + "".join(
            f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            f"<|plamo:begin_tool_arguments:plamo|>{kind}<|plamo:msg|>{arguments}"
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
            for name, kind, arguments in (
                ("weather", "<|plamo:constrain|>json", ARGUMENTS), ("clock", "", "{}")
            )
        )
        + "<|plamo:end_tool_requests:plamo|>",
        TWO,
    ),
    "inkling": (
        "inkling",
        f'weather<|content_invoke_tool_json|>{{"name":"weather","args":{ARGUMENTS}}}<|end_message|>'
        '<|message_model|>clock<|content_invoke_tool_json|>{"name":"clock","args":{}}<|end_message|>',
        TWO,
    ),
    "inkling_unnamed": (
        "inkling",
        f'<|content_invoke_tool_json|>{{"name":"weather","args":{ARGUMENTS}}}<|end_message|>'
        "<|content_model_end_sampling|>",
        TWO[:1],
    ),
    "functiongemma": (
        "functiongemma",
        f"<start_function_call>call:weather{{at:{{x:[true]}},city:<escape>{PLAIN}<escape>,days:3}}"
        "<end_function_call><start_function_call>call:clock{}<end_function_call>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "internlm2": (
        "internlm2",
        f"<|action_start|><|plugin|>\n{AS_JSON}<|action_end|><|action_start|><|plugin|>{CLOCK}<|action_end|>",
        TWO,
    ),
    "pangu": ("pangu", f"[unused11][{AS_JSON}, {CLOCK}][unused12]", TWO),
    "granite_20b_fc": ("granite_20b_fc", f"<function_call> {AS_JSON}\n<function_call> {CLOCK}\n", TWO),
    "minicpm3": (
        "minicpm3",
        f"<|tool_call_start|>\n```python\nweather(city={PLAIN!r}, days=3, at={{'x': [True]}})\nclock()\n```\n"
        "<|tool_call_end|>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "lfm2_json": (
        "lfm2", f"<|tool_call_start|>[{AS_JSON}, {CLOCK}]<|tool_call_end|>", TWO,
    ),
    "llama4": ("llama3_json", f"<|python_start|>{AS_JSON}; {CLOCK}<|python_end|>", TWO),
    "llama4_empty": ("llama3_json", f"<|python_start|><|python_end|>{AS_JSON}{CLOCK}", TWO),
    "minicpm5": (
        "minicpm5",
        f'<function name="weather"><param name="city"><![CDATA[{PLAIN}]]></param><param name="days">3</param>'
        '<param name="at">{"x": [true]}</param></function>\n<function name="clock"></function>',
        [("weather", SIMPLE), ("clock", {})],
    ),
    "solar_open": (
        "solar_open",
        f"<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>{ARGUMENTS}"
        "<|tool_call:end|><|tool_call:begin|>b1b2c3d4e5<|tool_call:name|>clock<|tool_call:args|>{}"
        "<|tool_call:end|><|calls|>",
        TWO,
    ),
    "gigachat3": (
        "gigachat3",
        f"<|message_sep|>\n\nfunction call<|role_sep|>\n{AS_JSON}<|message_sep|>\n\n",
        TWO[:1],
    ),
    "gigachat31": ("gigachat31", f"<|function_call|>{AS_JSON}", TWO[:1]),
    "apertus": (
        "apertus",
        f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}, {{"clock": {{}}}}]<|tools_suffix|>',
        TWO,
    ),
    "apriel": ("apriel", f"<tool_calls>[{AS_JSON}, {CLOCK}]</tool_calls>", TWO),
    "minimax_m1": ("minimax_m1", f"<tool_calls>\n{AS_JSON}\n{CLOCK}\n</tool_calls>", TWO),
    "seed_oss": (
        "seed_oss",
        f"<seed:tool_call>\n<function=weather>\n<parameter=city>{PLAIN}</parameter>\n"
        '<parameter=days>3</parameter>\n<parameter=at>{"x": [true]}</parameter>\n</function>\n'
        "</seed:tool_call>",
        [("weather", SIMPLE)],
    ),
    "nemotron": ("nemotron", f"<TOOLCALL>[{AS_JSON}, {CLOCK}]</TOOLCALL>", TWO),
    "cohere": (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        f"{ARGUMENTS}}},\n"
        '    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
        TWO,
    ),
    "phi4": ("phi4", f"<|tool_call|>[{AS_JSON}, {CLOCK}]<|/tool_call|>", TWO),
    "phi4_array": ("phi4", f"[{AS_JSON}, {CLOCK}]", TWO),
    "phi4_functools": ("phi4", f"functools[{AS_JSON}, {CLOCK}]", TWO),
    "harmony": (
        "harmony",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGUMENTS,
        TWO[:1],
    ),
    "harmony_role": (
        "harmony",
        "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>" + ARGUMENTS,
        TWO[:1],
    ),
    "harmony_first": (
        "harmony",
        " to=functions.weather<|channel|>commentary <|constrain|>json<|message|>" + ARGUMENTS,
        TWO[:1],
    ),
    "harmony_code": (
        "harmony",
        "<|channel|>analysis to=functions.weather code<|message|>" + ARGUMENTS,
        TWO[:1],
    ),
    "kimi_k3": (
        "kimi_k3",
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        f'<|open|>argument key="city" type="string"<|sep|>{PLAIN}<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        '<|open|>argument key="at" type="object"<|sep|>{"x":[true]}<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="clock" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "kimi_k3_json": (
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>json type="object"<|sep|>'
        f"{ARGUMENTS}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        TWO[:1],
    ),
    "muse_glimmer": (
        "muse_glimmer",
        ' to=weather<|message|><atem:function_calls>\n<atem:invoke name="weather">\n'
        f'<atem:parameter name="city">{PLAIN}</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n<atem:parameter name="at">{"x": [true]}'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>"
        '<|start|>assistant to=clock<|message|><atem:function_calls>\n<atem:invoke name="clock">\n'
        "</atem:invoke>\n</atem:function_calls>",
        [("weather", SIMPLE), ("clock", {})],
    ),
    "functionary31": (
        "functionary31",
        f"<function=weather>{ARGUMENTS}</function><function=clock>{{}}</function>",
        TWO,
    ),
    "functionary32": ("functionary32", f"weather\n{ARGUMENTS}>>>clock\n{{}}", TWO),
    "minimax_m3": (
        "minimax_m3",
        f'{NS}<tool_call>\n{NS}<invoke name="weather">{NS}<city>{PLAIN}{NS}</city>{NS}<days>3{NS}</days>'
        f'{NS}<at>{NS}<x>{NS}<item>true{NS}</item>{NS}</x>{NS}</at>{NS}</invoke>\n'
        f'{NS}<invoke name="clock">{NS}</invoke>\n{NS}</tool_call>',
        [("weather", SIMPLE), ("clock", {})],
    ),
}  # fmt: skip
ALONE = (
    *("llama3_json", "llama4_empty", "json", "pythonic", "phi4_array", "phi4_functools", "harmony_first"),
)
"""Examples that are the whole answer."""


def form_of(calls: str = "none", thoughts: str = "none", **more) -> AnswerFormat:
    form = answer_format(named(CALLS, calls), named(THOUGHTS, thoughts))
    form.begun = THOUGHTS[thoughts].message if thoughts in THOUGHTS else ""
    form.MergeFrom(AnswerFormat(**more))
    return form


def split(form: AnswerFormat, *texts: str, cut: bool = False) -> Pieces:
    splitter = Splitter(form, FUNCTIONS)
    pieces = [*map(splitter.add, texts), splitter.finish(cut)]
    calls = tuple(call for each in pieces for call in each.calls)
    return Pieces("".join(each.reasoning for each in pieces), "".join(each.content for each in pieces), calls)


def of(calls: tuple[Call, ...]) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def assert_any_cut_is_the_same(form: AnswerFormat, text: str) -> Pieces:
    whole = split(form, text)
    assert split(form, *text) == whole
    for place in range(len(text)):
        assert split(form, text[:place], text[place:]) == whole, place
    return whole


def test_the_thought_of_gemma_4_begins_with_a_token_and_a_word():
    form = form_of("hermes", "gemma4")
    calls = f"<tool_call>{AS_JSON}</tool_call>"
    found = assert_any_cut_is_the_same(form, f"<|channel>thought\nHm: 5 < 7\n<channel|>Yes.{calls}")
    assert (found.reasoning, found.content, of(found.calls)) == ("Hm: 5 < 7", "Yes.", TWO[:1])
    found = assert_any_cut_is_the_same(form, "<|channel>thought\n<channel|>Yes: <|channel>no")
    assert (found.reasoning, found.content) == ("", "Yes: <|channel>no")
    form.thinking = True
    found = assert_any_cut_is_the_same(form, "\nHm.\n<channel|>Yes.")
    assert (found.reasoning, found.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{city:<|"|>a "b": {c}, d:[None]\\n\n <|"|>}', {"city": 'a "b": {c}, d:[None]\\n\n '}),
        ('{ city : <|"|><|"|> , days : -2.5e3 }', {"city": "", "days": -2500.0}),
        ('{at:{a b:null,c:[{d:<|"|>x<|"|>},None,false],None:{}}}',
         {"at": {"a b": None, "c": [{"d": "x"}, None, False], "None": {}}}),
        ('{"city":"a, b: None \\" c",days:3}', {"city": 'a, b: None " c', "days": 3}),
        ('{city:<|"|>{a:<tool_call>,b<|"|>}', {"city": "{a:<tool_call>,b"}),
        ("{city:Bergen}", None),
        ('{city:<|"|>Bergen}', None),
        ('{city:<|"|>a<|"|>b<|"|>}', None),
        ('{city:<|"|>a<|"|>} and more', None),
        ("{days:3,}", None),
        ("{days:NaN}", None),
        ("[]", None),
        ("(days=3)", None),
    ],
)  # fmt: skip
def test_arguments_of_gemma_4(text, arguments):
    form, call = form_of("gemma4", "gemma4"), f"<|tool_call>call:weather{text}<tool_call|>"
    expected = [] if arguments is None else [("weather", arguments)]
    found = assert_any_cut_is_the_same(form, f"<|channel>thought\nHm.\n<channel|>{call}")
    assert (found.reasoning, of(found.calls)) == ("Hm.", expected)
    assert found.content == (call if arguments is None else "")


def test_values_of_functiongemma_may_all_be_texts():
    """As the template of vLLM writes them; the schema tells which are none."""
    text = "days:<escape>3<escape>,city:<escape>7<escape>,at:<escape>{}<escape>,x:<escape>3<escape>"
    call = f"<start_function_call>call:weather{{{text}}}<end_function_call>"
    found = assert_any_cut_is_the_same(form_of("functiongemma"), call)
    assert of(found.calls) == [("weather", {"days": 3, "city": "7", "at": {}, "x": "3"})]


@pytest.mark.parametrize(
    "item", ['{"name": 7}', '{"name": "clock", "arguments": [1]}', "{1: 2}", "{**{}}", '{"a", "b"}', "clock"]
)
def test_objects_among_calls_as_in_python_that_are_no_calls(item):
    text = f'<|tool_call_start|>[{{"name": "clock", "arguments": {{}}}}, {item}]<|tool_call_end|>'
    assert assert_any_cut_is_the_same(form_of("lfm2"), text) == Pieces(content=text)


def thoughts_of(name: str, usual: str = "none") -> str:
    """The format of thoughts that goes with that of calls."""
    return name if name in SAID else usual


SAID = {
    "harmony": ("<|channel|>final<|message|>", ""),
    "kimi_k3": ("<|open|>response<|sep|>", ""),
    "muse_glimmer": (" to=user<|message|>", "<|eom|><|start|>assistant"),
    "functionary32": ("all\n", ">>>"),
    "inkling": ("<|content_text|>", "<|end_message|><|message_model|>"),
}
"""What stands before a text, and between it and calls, where texts have a head."""


def after(name: str, said: str, text: str) -> str:
    """An answer that says something before its calls."""
    head, between = SAID.get(name, ("", ""))
    return f"{head}{said}{between}{text}"


@pytest.mark.parametrize("example", EXAMPLES)
def test_calls(example):
    name, text, expected = EXAMPLES[example]
    form = form_of(name, thoughts_of(name))
    found = assert_any_cut_is_the_same(form, text)
    assert (found.reasoning, found.content, of(found.calls)) == ("", "", expected)
    if example in ALONE:
        return
    found = assert_any_cut_is_the_same(form, after(name, "Let me look.\n\n", text))
    assert (found.content, of(found.calls)) == ("Let me look.", expected)


@pytest.mark.parametrize(
    ("written", "key"),
    [("a&amp;b", "a&b"), ("say &quot;&amp;amp;&quot;", 'say "&amp;"'), ("a&lt;b", "a&lt;b")],
)
def test_names_may_be_written_as_in_xml(written, key):
    """As Kimi K3's template writes them."""
    text = (
        f'<|open|>tools<|sep|><|open|>call tool="{written}" index="1"<|sep|>'
        f'<|open|>argument key="{written}" type="string"<|sep|>&amp;<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    splitter = Splitter(form_of("kimi_k3", "kimi_k3"), {key: {}})
    (call,) = (*splitter.add(text).calls, *splitter.finish().calls)
    assert (call.name, json.loads(call.arguments)) == (key, {key: "&amp;"})


@pytest.mark.parametrize(
    ("value", "city"),
    [
        ("<![CDATA[a </param>\n & ]] > b]]>", "a </param>\n & ]] > b"),
        (" <![CDATA[]]>\n", ""),
        ("a ]]> b", "a ]]> b"),
        ("<![CDATA[ has no end", "<![CDATA[ has no end"),
    ],
)
def test_a_value_may_be_in_a_section_of_its_own(value, city):
    text = (
        f'<function name="weather"><param name="city">{value}</param><param name="days">3</param></function>'
    )
    found = assert_any_cut_is_the_same(form_of("minicpm5"), text)
    assert of(found.calls) == [("weather", {"city": city, "days": 3})]


@pytest.mark.parametrize(
    "text", ["x = 5\nclock()", "clock()\n[clock()]", "clock()\nrocket()", "clock(5)", ""]
)
def test_lines_that_are_no_calls(text):
    text = f"<function_calls>\n{text}\n</function_calls>"
    assert assert_any_cut_is_the_same(form_of("olmo3"), text) == Pieces(content=text)


def test_python_may_have_the_constants_of_json():
    text = "[weather(city='null', at={'x': [true, None, false]}, days=null)]"
    (call,) = split(form_of("pythonic"), text).calls
    assert json.loads(call.arguments) == {"city": "null", "at": {"x": [True, None, False]}, "days": None}


def test_what_stands_behind_a_call_makes_it_a_text():
    call = "<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>"
    for text in (f"{call} and </function>", f"{call} and {call}"):
        text = f"<tool_call>\n{text}\n</tool_call>"
        assert assert_any_cut_is_the_same(form_of("qwen3_coder"), text) == Pieces(content=text)


def test_every_format_has_an_example():
    assert {name.partition(":")[0] for name, _, _ in EXAMPLES.values()} == CALLS.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_function_that_was_not_offered(example):
    name, text, _ = EXAMPLES[example]
    form = form_of(name, thoughts_of(name))
    wrong = text.replace("weather", "rocket")
    found = assert_any_cut_is_the_same(form, wrong)
    assert "weather" not in dict(of(found.calls))
    assert "rocket" in found.content


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_call_that_is_cut_off(example):
    name, text, expected = EXAMPLES[example]
    for place in range(len(text)):
        found = split(form_of(name, thoughts_of(name)), text[:place])
        assert [call for call in of(found.calls) if call not in expected] == []


HEADED = {
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "So: <<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
    "muse_glimmer": " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.",
    "inkling": "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>",
    "functionary32": "all\nSo: 5 > 4>>>all\nYes.",
}


@pytest.mark.parametrize("name", HEADED)
def test_the_head_of_a_message_is_no_text_where_the_answer_is_cut_off(name) -> None:
    """After any token: a special one is whole."""
    form, tokens = form_of(name, name), re.findall(r"<\|\w+\|>|>>>|.", HEADED[name], re.DOTALL)
    whole = split(form, HEADED[name])
    assert whole.content.endswith("Yes.")
    for count in range(len(tokens)):
        found = split(form, "".join(tokens[:count]), cut=True)
        assert whole.content.startswith(found.content), tokens[:count]
        assert whole.reasoning.startswith(found.reasoning)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("cut", [False, True])
def test_what_is_left_of_a_demanded_call_is_no_text(example, cut):
    name, text, expected = EXAMPLES[example]
    form = form_of(name, thoughts_of(name), call_demanded=True)
    for place in range(len(text)):
        found = split(form, text[:place], cut=cut)
        assert (found.content, found.reasoning) == ("", ""), text[:place]
        assert of(found.calls) == expected[: len(found.calls)]
    assert of(split(form, text, cut=cut).calls) == expected


def test_a_thought_before_a_demanded_call_stays():
    form = form_of("hermes", "think", call_demanded=True)
    for thought in ("Hm.", "Hm.\n</thi", "Hm. <tool_call>"):
        assert split(form, f"<think>{thought}", cut=True) == Pieces(thought)
    assert split(form, "<think>Hm.</think>\n<tool_", cut=True) == Pieces("Hm.")


@pytest.mark.parametrize("example", [name for name in EXAMPLES if name not in ALONE])
def test_what_is_left_of_a_call_is_no_text_if_the_answer_was_cut(example):
    name, text, _ = EXAMPLES[example]
    form = form_of(name, thoughts_of(name))
    started = after(name, "Hm.", text[: text.index("weather") + 40])
    marks = [mark.partition("$")[0] for mark in (*form.call_begin, *form.call_first)]
    assert split(form, started, cut=True).content == "Hm."
    assert any(mark in split(form, started).content for mark in marks), "the model itself has ended it"


SEVERAL = [name for name, (_, _, calls) in EXAMPLES.items() if len(calls) > 1]


@pytest.mark.parametrize("example", SEVERAL)
@pytest.mark.parametrize("demanded", [False, True])
def test_calls_before_one_that_was_cut_stay(example, demanded):
    name, text, expected = EXAMPLES[example]
    form = form_of(name, thoughts_of(name), call_demanded=demanded)
    # The function has no arguments: from its name on, the call may be complete.
    for place in range(text.index("clock") - 1, text.index("clock") + 5):
        found = split(form, text[:place], cut=True)
        assert (of(found.calls), found.content) == (expected[:1], ""), text[:place]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[weather(city='a)', days=2), weather(city=\"it's) "),
        ("pythonic", "[weather(city='a)', days=2), weather(at={'x': ('"),
        ("json", '[{"name": "weather", "arguments": {"city": "a)", "days": 2}}, {"name": "weather", "arg'),
        ("minimax_m1", '<tool_calls>{"name": "weather", "arguments": {"city": "a)", "days": 2}}\n{"nam'),
        ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "a)", "days": 2}}, '),
    ],
)
def test_the_end_of_a_call_that_was_cut_is_told_by_its_syntax(name, text):
    assert of(split(form_of(name), text, cut=True).calls) == [("weather", {"city": "a)", "days": 2})]
    assert split(form_of(name), text).calls == (), "the model itself has ended it"
    wrong = text.replace("weather", "rocket")
    assert split(form_of(name), wrong, cut=True).calls == ()


def test_a_text_that_begins_as_calls_without_a_mark_stays_when_it_is_cut():
    for name, text in (
        ("json", '{"answer": 7, "wh'),
        ("pythonic", "[1, 2"),
        ("hermes", "a <tool_"),
        ("hermes", '[{"name": "weather", "temperature": 3}, {"na'),
    ):
        assert split(form_of(name), text, cut=True) == Pieces(content=text)


def test_marks_that_mean_nothing_are_text():
    text = "a <tool_call> b </tool_call> c <tool_call>{}</tool_call> <tool_ <"
    assert assert_any_cut_is_the_same(form_of("hermes"), text) == Pieces(content=text)
    text = '{"name": "weather"} is what I would say'
    assert assert_any_cut_is_the_same(form_of("llama3_json"), text) == Pieces(content=text)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n\n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
        ("\n<think>a < b</think>c", "a < b", "c"),
        ("<think></think>c", "", "c"),
        ("<think>never ends ", "never ends", ""),
        ("No <think>thought</think>", "", "No <think>thought</think>"),
        (" c ", "", " c "),
        ("</think>", "", "</think>"),
    ],
)
def test_thoughts(text, reasoning, content):
    assert assert_any_cut_is_the_same(form_of(thoughts="think"), text) == Pieces(reasoning, content)


@pytest.mark.parametrize(
    ("name", "text", "reasoning", "content"),
    [
        ("kimi_k3", "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
         "<|close|>message<|sep|>", "Hm.", "Yes."),
        ("kimi_k3", "Use the response tag.<|close|>think<|sep|><|open|>response<|sep|>The message",
         "Use the response tag.", "The message"),
        ("muse_glimmer", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.",
         "Hm.", "Yes."),
        ("muse_glimmer", " to=user<|message|>Say to=self or to=user.<|eom|><|start|>assistant"
         " to=self<|message|>Hm.<|eom|>", "Hm.", "Say to=self or to=user."),
        ("muse_glimmer", "<|message|>Yes.", "", "Yes."),
        ("muse_glimmer", " to=us", "", " to=us"),
        ("muse_glimmer", "", "", ""),
        ("inkling", "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes."
         "<|end_message|><|content_model_end_sampling|>", "Hm.", "Yes."),
        ("inkling", "<|content_text|>Yes.<|end_message|><|message_model|><|content_thinking|>Hm.",
         "Hm.", "Yes."),
        ("cohere", "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>", "Hm.", "Yes."),
        ("think_response", "<think>\nHm.\n</think>\n\n\n<response>\nYes.\n</response>", "Hm.", "Yes."),
        ("think_answer", "<think>\nHm.\n</think>\n<answer>\n5 < 7\n</answer>", "Hm.", "5 < 7"),
        ("think_answer", "<answer>\nUse <answer>\n7\n</answer>.\n\n</answer>\n", "",
         "Use <answer>\n7\n</answer>.\n"),
        ("think_answer", "<think>Hm.</think>Yes.</answer> No.", "Hm.", "Yes.</answer> No."),
        ("think_answer", "<think>Hm. <answer></think>Yes.</answer></answer>", "Hm. <answer>",
         "Yes.</answer>"),
        ("think_answer", "<answer>\n\n</answer>", "", ""),
        ("think_answer", "Yes. \n", "", "Yes. \n"),
        ("think_answer", "Yes.</answ", "", "Yes.</answ"),
        ("granite", "Here is my thought process: Hm.\nHere is my response:\n\nYes.", "Hm.", "Yes."),
        ("minicpm3", "<|thought_start|>\nHm.\n<|thought_end|>\nYes.", "Hm.", "Yes."),
        ("kimi_vl", "◁think▷Hm.◁/think▷Yes ◁", "Hm.", "Yes ◁"),
        ("think:any", "<think:any>Hm.</think></think:any>Yes.", "Hm.</think>", "Yes."),
        ("functionary32", "all\nThat is all\n>>> x", "", "That is all\n>>> x"),
        ("functionary32", "Yes.", "", "Yes."),
        ("functionary32", "al", "", "al"),
        ("functionary32", "", "", ""),
        ("minimax_m3", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
        ("minimax_m3", "</mm:think>Yes.", "", "Yes."),
    ],
)  # fmt: skip
def test_thoughts_and_texts_with_heads(name, text, reasoning, content):
    form = form_of(name, name, thinking=name == "kimi_k3")
    assert assert_any_cut_is_the_same(form, text) == Pieces(reasoning, content)


@pytest.mark.parametrize(("calls", "end"), [("apriel", "</tool_calls>"), ("granite", ""), ("json", "")])
def test_calls_between_the_marks_of_an_answer(calls, end):
    begin = "".join(CALLS[calls].begin)
    text = f"<think>Hm.</think>\n<answer>\n{begin}[{AS_JSON}, {CLOCK}]{end}"
    for closing in ("", "\n</answer>\n") if begin else ("",):
        found = assert_any_cut_is_the_same(form_of(calls, "think_answer"), text + closing)
        assert (found.reasoning, found.content, of(found.calls)) == ("Hm.", "", TWO)


@pytest.mark.parametrize("text", ["Say >>>all\nor >>>rocket\nthere", ">>> 1\n1"])
def test_a_prompt_of_python_is_a_text(text):
    assert assert_any_cut_is_the_same(form_of("functionary32"), text).calls == ()


def test_a_markup_in_an_answer_is_no_call():
    text = EXAMPLES["muse_glimmer"][1].partition("<|message|>")[2].partition("<|eom|>")[0]
    found = assert_any_cut_is_the_same(form_of("muse_glimmer", "muse_glimmer"), f" to=user<|message|>{text}")
    assert found == Pieces("", text)


@pytest.mark.parametrize(
    ("argument", "told", "written", "value"),
    [
        ("city", "string", "7", "7"),
        ("city", "number", "7", "7"),
        ("days", "string", "7", 7),
        ("days", "number", "7", 7),
        ("unknown", "string", "7", "7"),
        ("unknown", "number", "7", 7),
        ("unknown", "object", '{"a": 1}', {"a": 1}),
        ("unknown", "null", "null", None),
        ("unknown", "number", "seven", "seven"),
    ],
)
def test_a_type_that_the_model_tells_counts_where_the_schema_leaves_it_open(argument, told, written, value):
    text = EXAMPLES["kimi_k3"][1].partition("<|open|>argument")[0]
    text += f'<|open|>argument key="{argument}" type="{told}"<|sep|>{written}<|close|>argument<|sep|>'
    (call,) = split(form_of("kimi_k3"), f"{text}<|close|>call<|sep|><|close|>tools<|sep|>").calls
    assert json.loads(call.arguments) == {argument: value}


def test_a_thought_that_the_prompt_began():
    form = form_of("hermes", "think", thinking=True)
    text = f"\nHm <tool_call>.\n</think>\n\n<tool_call>{CLOCK}</tool_call>\n"
    assert assert_any_cut_is_the_same(form, text) == Pieces("Hm <tool_call>.", "", (Call("clock", "{}"),))


@pytest.mark.parametrize("name", ["kimi_k2", "hermes", "qwen3_coder", "glm", "minimax_m2"])
def test_calls_at_the_end_of_a_thought_that_is_never_closed(name):
    """As Kimi K2 Thinking makes them."""
    _, text, expected = EXAMPLES[name]
    form, thought = (
        form_of(name, "think", thinking=True),
        f"Hm. {form_of(name).call_begin[0]} begins one.\n{text}",
    )
    found = assert_any_cut_is_the_same(form, thought)
    assert (found.reasoning, found.content, of(found.calls)) == (thought, "", expected)
    assert split(form, thought, cut=True) == Pieces(thought)
    for more in (" That is how.", "</think>"):
        found = assert_any_cut_is_the_same(form, thought + more)
        assert found == Pieces((thought + more).removesuffix("</think>"))
    found = assert_any_cut_is_the_same(form, f"{thought}</think>Yes.")
    assert found == Pieces(thought, "Yes.")


def test_calls_of_a_function_that_was_not_offered_at_the_end_of_a_thought():
    thought = "Hm.\n" + EXAMPLES["kimi_k2"][1].replace("clock", "rocket")
    assert split(form_of("kimi_k2", "think", thinking=True), thought) == Pieces(thought)


def test_a_call_without_its_first_mark_may_have_an_end_or_none():
    call = "<function=clock>\n</function>"
    for text, said in (
        (call, ""),
        (f"Now: {call}\n", "Now:"),
        (f"{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call>", ""),
        (f"Write <function=rocket> or {call}", "Write <function=rocket> or"),
    ):
        found = assert_any_cut_is_the_same(form_of("qwen3_coder"), text)
        assert (found.content, of(found.calls)) == (said, [("clock", {})] * text.count("clock"))
    for text in (f"{call} is a call.", f"{call}\n\n<tools> </tool_call>"):
        assert assert_any_cut_is_the_same(form_of("qwen3_coder"), text) == Pieces(content=text)
    for more in (call, f"<tool_call>\n{call}\n</tool_call>"):
        found = assert_any_cut_is_the_same(form_of("qwen3_coder"), f"{call}\n{more}")
        assert (found.content, of(found.calls)) == ("", [("clock", {}), ("clock", {})])
    found = assert_any_cut_is_the_same(form_of("qwen3_coder"), f"Not {call}, but {call}")
    assert (found.content, of(found.calls)) == (f"Not {call}, but", [("clock", {})])


def test_a_text_behind_a_call_without_its_first_mark_is_not_held():
    splitter = Splitter(form_of("qwen3_coder"), FUNCTIONS)
    assert splitter.add("<function=clock>\n</function>\n") == Pieces()
    assert splitter.add("is").content == "<function=clock>\n</function>\nis"
    assert splitter.add(" a call").content == " a call"


def test_a_text_that_tells_of_a_call_s_mark_goes_on():
    text = "Write <function=clock> or <function=weather>\n<parameters"
    splitter = Splitter(form_of("qwen3_coder"), FUNCTIONS)
    assert "".join(splitter.add(each).content for each in text) == text
    call = "<function=clock>\n</function>"
    for mark in ("", "<tool_call>\n"):
        found = assert_any_cut_is_the_same(form_of("qwen3_coder"), f"Write <function=weather>, {mark}{call}")
        assert (found.content, of(found.calls)) == ("Write <function=weather>,", [("clock", {})])


BARE = (
    *("hermes", "mistral", "granite", "cohere", "apertus", "json", "phi4", "llama3_json", "longcat_json"),
    "minimax_m1",
)


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{AS_JSON}\n```",
        f"```\n[{AS_JSON}]\n```\n",
        f'\n{{\n  "name" : "weather",\n  "arguments": {ARGUMENTS}\n}}\n',
        f'{{"name": "weather", "id": "1", "type": "function", "parameters": {ARGUMENTS}}}',
    ],
)
def test_an_answer_that_is_a_call_without_a_mark(name, text):
    """As Qwen 2.5 Coder makes it, and models that are told of functions as text."""
    found = assert_any_cut_is_the_same(form_of(name, "think"), f"<think>Hm.</think>\n{text}")
    assert (found.reasoning, found.content, of(found.calls)) == ("Hm.", "", TWO[:1])


@pytest.mark.parametrize("name", BARE)
def test_json_that_describes_a_function_is_no_call(name):
    described = '{"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}'
    texts = [f"```json\n{described}\n```", f"```\n[{CLOCK}, {described}]\n```"]
    for text in (*texts, described) if not form_of(name).call_opening else texts:
        assert assert_any_cut_is_the_same(form_of(name), text) == Pieces(content=text)
        assert split(form_of(name), text, cut=True) == Pieces(content=text)


def test_a_call_that_has_its_last_mark_alone():
    found = assert_any_cut_is_the_same(form_of("hermes"), f"{CLOCK}\n</tool_call>")
    assert (found.content, of(found.calls)) == ("", [("clock", {})])


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('{"name": "weatherman", "arguments": {}}', '{"name": "weather'),
        ('{ "city": "Oslo"}', '{ "'),
        ("```python\nweather()\n```", "```"),
        ('```json\n[{"id": 7}]\n```', '```json\n[{"'),
        ("[1, 2]", "["),
        ('{"name": "weather", "temperature": 3}', '{"name": "weather", "temperature": 3}'),
        (f"```json\n{AS_JSON}\n```\nis a call.", f"```json\n{AS_JSON}\n```\n"),
        (f"{AS_JSON}; {{}} \\", f"{AS_JSON}; {{}} "),
        (f"{AS_JSON}}} {{", AS_JSON),
        (f"[{AS_JSON}, {{}}], 7, 8", f"[{AS_JSON}, {{}}], "),
    ],
)
def test_json_that_is_no_call_waits_until_it_can_be_none(text, held):
    form = form_of("minimax_m1")
    assert assert_any_cut_is_the_same(form, text) == Pieces(content=text)
    splitter = Splitter(form, FUNCTIONS)
    assert "".join(splitter.add(each).content for each in held) == ""
    if held != text:
        assert splitter.add(text[len(held)]).content == held + text[len(held)].rstrip()


def test_names_of_functions_are_not_spelled_anew_for_each_token():
    class Counted(dict):
        walks = 0

        def __iter__(self):
            self.walks += 1
            return super().__iter__()

    functions = Counted({f"f{number}" + "x" * 200: {} for number in range(100)})
    splitter = Splitter(form_of("hermes"), functions)
    before = functions.walks
    text = f'{{ "name": "f7{"x" * 200}"'
    assert [splitter.add(each) for each in text] == [Pieces()] * len(text)
    assert functions.walks <= before + 1
    (call,) = splitter.add(', "arguments": {}}').calls + splitter.finish().calls
    assert call.name == f"f7{'x' * 200}"


def test_calls_behind_a_text_that_begins_with_the_json_of_one():
    for name, text in (
        ("hermes", f"```\n{AS_JSON}\n```\n"),
        ("llama3_json", '{"a": "}"} '),
        ("phi4", "[1] "),
    ):
        call = f"{form_of(name).call_begin[0]}{CLOCK}{form_of(name).call_end}"
        found = assert_any_cut_is_the_same(form_of(name), f"{text}is none. {call}")
        assert (found.content, of(found.calls)) == (f"{text}is none.", [("clock", {})])


def test_json_that_was_asked_for_is_no_call():
    form = form_of("hermes")
    form.call_bare = False
    assert split(form, CLOCK) == Pieces(content=CLOCK)


def test_a_number_beyond_all_others_is_the_largest():
    text = '<tool_call>{"name": "weather", "arguments": {"a": [1e999, -1E+400, 2.5]}}</tool_call>'
    (call,) = split(form_of("hermes"), text).calls
    assert json.loads(call.arguments) == {"a": [sys.float_info.max, -sys.float_info.max, 2.5]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a\n\tb"}}</tool_call>'),
        ("mistral_args", '[TOOL_CALLS]weather[ARGS]{"city": "a\n\tb"}'),
        ("qwen3_coder", '<tool_call><function=weather><parameter=at>{"city": "a\n\tb"}</parameter></function>'
         "</tool_call>"),
    ],
)  # fmt: skip
def test_new_lines_and_tabs_in_strings_of_json(name, text):
    (call,) = split(form_of(name), text).calls
    assert '{"city": "a\\n\\tb"}' in call.arguments


def test_channels():
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>More.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Yes."
    )
    assert assert_any_cut_is_the_same(form_of("harmony", "harmony"), text) == Pieces("Hm.More.", "Wait.Yes.")


@pytest.mark.parametrize("channel", ["final", "commentary"])
@pytest.mark.parametrize("content", [" <|constrain|>json", "<|constrain|>json", " json"])
def test_a_channel_may_say_that_its_text_is_json(channel, content):
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = f'{thought}<|channel|>{channel}{content}<|message|>{{"a": 1}}'
    found = assert_any_cut_is_the_same(form_of("harmony", "harmony"), text)
    assert found == Pieces("Hm.", '{"a": 1}')


def test_what_begins_a_call_only_at_the_beginning_is_text_elsewhere():
    text = f"<|channel|>final<|message|>Write to=functions.weather<|message|>{ARGUMENTS}"
    found = assert_any_cut_is_the_same(form_of("harmony", "harmony"), text)
    assert found == Pieces("", text.removeprefix("<|channel|>final<|message|>"))
    assert (
        assert_any_cut_is_the_same(form_of("phi4"), "The functools module.").content
        == "The functools module."
    )
    assert assert_any_cut_is_the_same(form_of("phi4"), "functools is one.").content == "functools is one."


def test_half_a_character():
    """It can be told to no client, and would end the conversation if it came back."""
    said = r'{"name": "weather", "arguments": {"city": "\ud83d", "\ude00": "😀"}, "id": "\ud83d"}'
    (call,) = split(form_of("json"), said).calls
    assert (call.arguments, call.id) == ('{"city": "\ufffd", "\ufffd": "😀"}', "\ufffd")


def test_the_model_s_own_ids():
    found = split(form_of("kimi_k2"), EXAMPLES["kimi_k2"][1])
    assert [call.id for call in found.calls] == ["functions.weather:0", "functions.clock:1"]


PARTS = sorted(
    {mark for name in CALLS for mark in (*CALLS[name].begin, CALLS[name].end, *CALLS[name].delimiters)}
    | {text for _, text, _ in EXAMPLES.values()}
    | {"<think>", "</think>", "{", "}", "[", '"', "\\", " ", "\n", "weather", "a", "<", "]", AS_JSON, CLOCK}
)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=30)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=8), seed=st.integers(0, 2**16), thinking=st.booleans())
def test_any_text_at_any_cut(name, parts, seed, thinking):
    form = form_of(name, thoughts_of(name, "think"), thinking=thinking and name != "functionary32")
    text, draw = "".join(parts), random.Random(seed)
    whole = split(form, text)
    assert split(form, *text) == whole
    cuts = sorted(draw.choices(range(len(text) + 1), k=5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(form, *pieces) == whole
    for call in whole.calls:
        assert call.name in FUNCTIONS
        assert isinstance(json.loads(call.arguments), dict)


HOSTILE = [
    "a" + " " * 1000 + "x{",
    "1 " * 50_000,
    "[" * 100_000,
    '{"a":' * 50_000,
    "<function=a>" * 10_000,
    "<function=a>" * 5_000 + "</function>" + "<function=a>" * 5_000,
    "<arg_key></arg_key>" * 6_000,
    "<arg_key>a</arg_key><arg_value>" * 4_000,
    "rocket" + "<arg_key>a</arg_key><arg_value>" * 4_000 + "</arg_value>",
    "-" * 30_000 + "1",
    "[weather(a=" + "(" * 30_000,
    "[weather" + ".a" * 15_000 + "()]",
    "[" + "9" * 30_000 + "]",
    "clock()" + " " * 30_000 + "x",
    '{"name": "weather", "arguments": {"a": NaN}}',
    "functions." * 10_000 + "{}",
    "</tool_call>" * 10_000,
    "call:weather{" + "a:{" * 50_000,
    "call:weather{a:" + '<|"|>' * 20_001,
    "call:weather{a:" + '\\"' * 50_000,
    "call:weather{" + " " * 100_000 + "," * 100_000,
]


@pytest.mark.parametrize("name", CALLS)
def test_hostile_texts_are_text_and_cost_little(name):
    entry = CALLS[name]
    form = form_of(name)
    begin = entry.begin[0] if entry.begin else ""
    begun = time.process_time()
    for text in HOSTILE:
        found = split(form, begin, *(text[i : i + 1000] for i in range(0, len(text), 1000)), entry.end)
        assert found.calls == (), text[:50]
    assert time.process_time() - begun < 1
