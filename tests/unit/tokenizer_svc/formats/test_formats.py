"""A chat template tells how its model spells calls and thoughts, and the marks stay in the text."""

import json
import re
from dataclasses import replace

import pytest

from gateway.api.parsers.splitter import Splitter
from proto.tokenizer_pb2 import JSON_CALLS, NAMED_JSON, PYTHON_CALLS, ChatMessage, Conversation
from tests.unit.gateway.api.parsers.test_splitter import form_of, thoughts_of
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.formats import Formats, ThoughtRules, said_in
from tokenizer_svc.formats.thought_table import THOUGHTS
from tokenizer_svc.settings import TokenizerSettings

MARKS = "<think> <｜tool▁call｜>"


def names_of(model, template, **names):
    formats = Formats(replace(model, template=template), **names)
    calls = [name for name, entry in CALLS.items() if entry is formats.calls]
    thoughts = [name for name, entry in THOUGHTS.items() if entry is formats.thoughts]
    return calls, thoughts


def signs(table):
    return [(name, signs) for name, entry in table.items() for signs in entry.signs]


@pytest.mark.parametrize(("name", "signs"), signs(CALLS))
def test_a_template_tells(byte_level, name, signs):
    assert names_of(byte_level, " ".join(signs))[0] == [name]


@pytest.mark.parametrize(("name", "signs"), signs(THOUGHTS))
def test_a_template_tells_of_thoughts(byte_level, name, signs):
    assert names_of(byte_level, " ".join(signs))[1] == [name]


def test_a_token_tells_of_calls_that_a_template_leaves_to_the_model(byte_level):
    """As with LFM2.5, whose smaller models have templates without the mark."""
    model = replace(byte_level, special_tokens={**byte_level.special_tokens, "<|tool_call_start|>": 7})
    assert names_of(model, "List of tools: [")[0] == ["lfm2"]
    assert names_of(model, "<tool_call>")[0] == ["hermes"], "the template comes first"
    assert names_of(model, None)[0] == []
    model = replace(byte_level, special_tokens={**byte_level.special_tokens, "<|action_start|>": 7})
    assert names_of(model, "{{ messages }}")[0] == ["internlm2"]


@pytest.mark.parametrize(
    ("source", "suffix"),
    [
        ("{}", ""),
        ("{{% set HYTK = ':opensource' %}} {}", "{}"),
        ('{{% set HYTK = ":6124c78e" %}} {}', "{}"),
        ("{{% set HYTK = ':another_one' %}} {}", "' + HYTK + '"),
        ("{}", ":opensource"),
    ],
)
@pytest.mark.parametrize(("separator", "name"), [("<tool_sep>", "hy3"), ("", "hy4")])
def test_marks_of_hunyuan_end_with_what_its_template_says(byte_level, source, suffix, separator, name):
    """Templates with a suffix add it to each mark."""
    marks = f"<think> </think> <tool_calls> <tool_call> {separator} <arg_key> <arg_value>"
    template = source.format(marks.replace(">", f"{suffix}>"))
    formats = Formats(replace(byte_level, template=template))
    told = (re.search(r":\w+", template) or [""])[0]
    assert (formats.call_name, formats.thought_name) == (f"{name}{told}", f"think{told}")
    form = formats.of(True, byte_level.encode(f"A<think{told}>", special=False))
    assert (form.call_begin, form.call_end) == ([f"<tool_call{told}>"], f"</tool_call{told}>")
    assert (form.thought_end, form.thinking) == (f"</think{told}>", True)
    assert f"<arg_key{told}>$key</arg_key{told}>" in form.argument_text


def test_a_template_without_a_suffix_of_marks(byte_level):
    template = "<arg_key{}> <tool_call>"
    assert names_of(byte_level, template)[0] == ["hermes"], "it does not say what it fills in"


@pytest.mark.parametrize("level", ["think", "think_fast", "think_faster"])
def test_the_prompt_tells_how_deep_a_thought_is(byte_level, level):
    """K2 Horizon has marks for each depth; its template writes the first one."""
    formats = Formats(replace(byte_level, template="<ifm|think> <ifm|tool_call>"))
    form = formats.of(True, byte_level.encode(f"A<ifm|{level}>\n", special=False))
    assert (form.thought_begin, form.thought_end) == (f"<ifm|{level}>", f"</ifm|{level}>")
    assert form.thinking
    name = level.replace("think", "k2_horizon")
    assert formats.before(byte_level.encode(f"A<ifm|{level}>", special=False)) == ThoughtRules(name, {}, True)
    closed = byte_level.encode(f"A<ifm|{level}></ifm|{level}>", special=False)
    assert (formats.of(True, closed).thinking, formats.before(closed)) == (False, ThoughtRules("", {}))


def test_a_template_for_functions_tells_of_calls(byte_level):
    """As with Hermes 3, whose default template has nothing of them."""
    model = replace(byte_level, tool_template="<tool_call>")
    assert names_of(model, "{{ messages }}</think>") == (["hermes"], ["think"])


def test_calls_in_json_can_be_told_as_text(byte_level):
    def spelled(name):
        spelling = Formats(replace(byte_level, template="no sign"), calls=name).spelling
        return spelling and spelling.of([("f", {"a": 1}), ("g", "no JSON")])

    assert spelled("json") == '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": "no JSON"}]'
    assert spelled("deepseek_v31") == (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>g<｜tool▁sep｜>"no JSON"<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    assert spelled("kimi_k2").count("functions.") == 2
    assert "functions.g:1<" in spelled("kimi_k2")
    assert spelled("mistral").startswith('[TOOL_CALLS] [{"name": "f"')
    assert (spelled("glm"), spelled("none")) == (None, None)


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_are_told_as_text_are_read_as_these(byte_level, name):
    spelling = Formats(replace(byte_level, template="no sign"), calls=name).spelling
    if spelling is None:
        assert CALLS[name].syntax not in (JSON_CALLS, NAMED_JSON, PYTHON_CALLS)
        return
    calls = [("weather", {"city": "a } b", "days": 3}), ("clock", {})]
    calls = calls[:1] if CALLS[name].between is None else calls
    splitter = Splitter(form_of(name, thoughts_of(name)), {"weather": {}, "clock": {}})
    found = (*splitter.add(spelling.of(calls)).calls, *splitter.finish().calls)
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


def test_a_template_that_tells_of_no_calls_is_one_for_json(byte_level):
    assert names_of(byte_level, "{{ messages }}</think>") == (["json"], ["think"])
    formats = Formats(replace(byte_level, template="{{ messages }}"))
    assert formats.of(False, [1]) is None, "without functions an answer is text alone"
    assert formats.of(True, [1]).call_opening == "{["


def test_settings_win(byte_level):
    assert names_of(byte_level, None) == ([], [])
    assert names_of(byte_level, "<tool_call></think>") == (["hermes"], ["think"])
    assert names_of(byte_level, "<tool_call></think>", calls="glm", thoughts="none") == (["glm"], [])
    assert names_of(byte_level, "no sign", calls="none") == ([], [])
    with pytest.raises(ValueError, match="no format 'hermess': it is one of harmony"):
        TokenizerSettings(tool_format="hermess")
    with pytest.raises(ValueError, match="no format 'hy4:'"):
        TokenizerSettings(tool_format="hy4:")
    assert TokenizerSettings(tool_format="hy4:any").tool_format == "hy4:any"
    assert Formats(byte_level, calls="hy4:any").calls.end == "</tool_call:any>"


def test_marks_that_are_special_tokens_are_text(byte_level):
    model = replace(byte_level, special_tokens={"[TOOL_CALLS]": 400, "</s>": 1})
    plain = byte_level.plain_tokens.showing(())
    plain._skipped = frozenset((0, 1, 400))
    model = replace(model, plain_tokens=plain, template="[TOOL_CALLS]")
    formats = Formats(model)
    assert formats.visible[400] == model.every_token[400]
    assert (formats.visible[1], plain[400]) == (b"", b"")


@pytest.mark.parametrize(
    ("prompt", "thinking"), [("A<think>\n", True), ("A<think>\n\n</think>\n\n", False), ("A", False)]
)
def test_a_prompt_may_begin_a_thought(byte_level, prompt, thinking):
    formats = Formats(replace(byte_level, template="</think>"))
    form = formats.of(False, byte_level.encode(prompt, special=False))
    assert form.thinking == thinking
    assert not form.call_begin
    before = formats.before(byte_level.encode(prompt, special=False))
    # A thought that the prompt has closed does not begin again.
    assert before == ThoughtRules("" if "</think>" in prompt else "think", formats.marks, thinking)


@pytest.mark.parametrize(
    ("said", "thinking"),
    [
        ("<think>Let me see" + " and see" * 40, True),
        ("\n<think>a</think>\n\n<think>b <think>", True),
        ("<think>a</think>Yes, <think>b", False),
        ("The tag `<think>` begins", False),
        ("Its first tag is <think>", False),
        ("<think>Let me see</think>Yes", False),
        ("Yes", False),
    ],
)
def test_a_thought_that_the_answer_goes_on_with(byte_level, said, thinking):
    formats = Formats(replace(byte_level, template="</think>"))
    prompt = byte_level.encode(f"<think> is a mark.\n{said}", special=False)
    chat = Conversation(messages=[ChatMessage(role="assistant", content=said)], continue_final_message=True)
    assert formats.of(False, prompt, said_in(chat)).thinking == thinking
    assert formats.before(prompt, said=said_in(chat)).thinking == thinking
    chat.continue_final_message = False
    assert said_in(chat) == ""


def test_a_thought_may_begin_behind_a_text_where_answers_consist_of_messages(byte_level):
    formats = Formats(replace(byte_level, template="no sign"), thoughts="inkling")
    said = "<|content_text|>Yes.<|end_message|><|message_model|><|content_thinking|>Hm"
    for text, thinking in ((said, True), (f"{said}<|end_message|>", False), ("Yes", False)):
        assert formats.of(False, byte_level.encode(text, special=False), text).thinking == thinking


@pytest.mark.parametrize(
    ("name", "prompt", "begun"),
    [
        ("muse_glimmer", "A<|start|>assistant", "<|start|>assistant"),
        ("functionary32", "A\n\n>>>", ">>>"),
        ("functionary32", "A\n\n>>>all\nB", ""),
        ("think", "A", ""),
    ],
)
def test_a_prompt_may_have_the_beginning_of_a_mark(byte_level, name, prompt, begun):
    formats = Formats(replace(byte_level, template="{{ messages }}"), thoughts=name)
    form = formats.of(False, byte_level.encode(prompt, special=False))
    assert (form.begun, form.thinking) == (begun, False)
    assert not formats.before(byte_level.encode(prompt, special=False)).thinking


def test_what_spells_nothing_costs_nothing(byte_level):
    formats = Formats(replace(byte_level, template="<tool_call>"))
    assert formats.of(False, [1]) is None
    assert formats.of(True, [1]).call_end == "</tool_call>"
