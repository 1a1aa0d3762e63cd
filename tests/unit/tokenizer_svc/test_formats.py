"""A chat template tells how its model spells calls and thoughts, and the marks stay in the text."""

from dataclasses import replace

import pytest

from tokenizer_svc.call_table import CALLS
from tokenizer_svc.formats import Formats, ThoughtRules
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.thought_table import THOUGHTS

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


@pytest.mark.parametrize(
    ("suffix", "separator", "calls", "thoughts"),
    [
        (":opensource", "<tool_sep{}>", "hy3", "hy3"),
        (":6124c78e", "", "hy4", "hy4"),
        (":opensource", "", "hy4_opensource", "hy3"),
        ("", "<tool_sep{}>", "hy3_plain", "think"),
        ("", "", "hy4_plain", "think"),
    ],
)
def test_marks_of_hunyuan_end_with_what_its_template_says(byte_level, suffix, separator, calls, thoughts):
    """Templates with a suffix add it to each mark."""
    marks = f"<think{{}}> <tool_calls{{}}> <tool_call{{}}> {separator} <arg_key{{}}> <arg_value{{}}>"
    template = f"{{% set HYTK = '{suffix}' %}} {marks}" if suffix else marks.format(*[""] * 6)
    assert names_of(byte_level, template) == ([calls], [thoughts])


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
