"""Which texts the formats of a structural tag take, and which of them cannot be followed."""

import json
import re
from typing import Any

import pytest

from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.structural_tags import structural_grammar

SPECIAL = {"<|begin|>": 0, "<|system|>": 1, "<|user|>": 2, "<|assistant|>": 3, "<|pad|>": 5}
"""Of the shipped model, but for its end token, 4."""
Json = dict[str, Any]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(SHIPPED_MODEL, 4096, [4])


def grammar(form: Json) -> str:
    return structural_grammar(json.dumps({"type": "structural_tag", "format": form}), SPECIAL)


def takes(vocabulary: Vocabulary, form: Json, text: str) -> bool:
    """Whether an answer may be this. Special tokens in it are such."""
    matcher = vocabulary.matcher(grammar(form))
    for index, piece in enumerate(re.split(rf"({'|'.join(map(re.escape, SPECIAL))})", text)):
        for token in [SPECIAL[piece]] if index % 2 else vocabulary._tokenizer.tokenize_str(piece):
            if not int.from_bytes(matcher.compute_bitmask(), "little") >> token & 1:
                return False
            matcher.consume_token(token)
    return bool(matcher.is_accepting())


def const(value: str) -> Json:
    return {"type": "const_string", "value": value}


def value(schema: Json | bool, **fields: Any) -> Json:
    return {"type": "json_schema", "json_schema": schema, **fields}


def text(*excludes: str, **fields: Any) -> Json:
    return {"type": "any_text", "excludes": excludes, **fields}


def seq(*elements: Json) -> Json:
    return {"type": "sequence", "elements": elements}


def either(*elements: Json) -> Json:
    return {"type": "or", "elements": elements}


def tag(begin: Any, content: Json, end: Any) -> Json:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def times(kind: str, content: Json, **fields: Any) -> Json:
    return {"type": kind, "content": content, **fields}


def triggered(*tags: Json, triggers: tuple[str, ...] = ("<f=",), **fields: Any) -> Json:
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **fields}


def separated(*tags: Json, separator: str = ",", **fields: Any) -> Json:
    return {"type": "tags_with_separator", "tags": tags, "separator": separator, **fields}


def dispatch(*rules: tuple[str, Json], **fields: Any) -> Json:
    return {"type": "dispatch", "rules": rules, **fields}


def token(name: int | str) -> Json:
    return {"type": "token", "token": name}


INT, FLAG = value({"type": "integer"}), value({"type": "object", "properties": {"a": {"type": "boolean"}}})
X, Y = tag("<f=x>", INT, "</f>"), tag("<f=y>", text(), "</f>")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
TAKEN: list[tuple[Json, list[str], list[str]]] = [
    (const("a b"), ["a b"], ["a", "a bc", ""]),
    (const(""), [""], ["a"]),
    (const("a<|user|>b"), ["a<|user|>b"], ["a", "ab"]),
    (const("\x00\n\x7f\u2028\\é漢😀"), ["\x00\n\x7f\u2028\\é漢😀"], ["\n"]),
    ({"type": "regex", "pattern": r"[a-c]+/\d"}, ["abc/1"], ["d/1", "abc/", "abc/١"]),
    ({"type": "regex", "pattern": "^ab$"}, ["ab"], ["aab", "abb"]),
    ({"type": "grammar", "grammar": 'root ::= "a" b+\nb ::= [0-9]\n'}, ["a12"], ["b1", "a"]),
    ({"type": "grammar", "grammar": 'start: "a" "b"+\n%ignore " "\n', "syntax": "lark"}, ["a b b"], ["b"]),
    (tag("[", {"type": "grammar", "grammar": "root ::= [0-9]+"}, "]"), ["[12]"], ["[]", "[a]"]),
    (seq(text("1"), {"type": "grammar", "grammar": 'root ::= "1"'}, FLAG), ["a{1{}"], ["a{}"]),
    (FLAG, ["{}", '{"a": true}', '{\n  "a":true}'], ['{"a":  true}', '{"a": 1}', ' {"a": true}']),
    (value(True), ["5", "[{}]", '"a"'], ["a", ""]),
    (value(FLAG["json_schema"], max_whitespace_cnt=0), ['{"a":true}'], ['{"a": true}']),
    (value(FLAG["json_schema"], max_whitespace_cnt=2), ['{"a": true}', '{"a":\n true}'], ['{"a":\n  true}']),
    (value(PERSON, any_order=True), ['{"name": "a", "age": 1}'], ['{"age": 1}']),
    (text(), ["", "a\n<b>"], ["a<|user|>"]),
    (text("STOP", "hi"), ["", "STO hx"], ["a STOP", "hi"]),
    (text(max_chars=3), ["", "äöü"], ["abcd"]),
    (text(max_tokens=1), ["", "a"], ["a b c d"]),
    (seq({"type": "regex", "pattern": "[a-z]+"}, const("abc")), ["xabc", "abcabc"], ["abc", "x"]),
    (seq(text("STOP"), const("STOP")), ["STOP", "a bSTOP"], ["a", "STOPSTOP"]),
    (seq(text("STOP", max_chars=2), const("STOP")), ["abSTOP"], ["abcSTOP"]),
    (seq(text("```"), const("```")), ["a```"], ["a````"]),
    (seq(text("<f"), X), ["a<f=x>1</f>", "<f=x>1</f>"], ["<f=x>a</f>", "a"]),
    (seq(text("<f"), times("star", X)), ["a", "a<f=x>1</f><f=x>2</f>"], ["a<f=x>1</f>b", "<f=y>"]),
    (either(const("yes"), const("no"), X), ["yes", "no", "<f=x>1</f>"], ["yesno", ""]),
    (seq(either(const("a"), const("")), const("ab")), ["ab", "aab"], ["a", "aaab"]),
    (tag("<r>", text(), "</r>"), ["<r></r>", "<r>a</b></r>"], ["<r>a", "<r></r></r>"]),
    (tag("<r>", text(), ["</r>", "</q>"]), ["<r>a</q>", "<r></r>"], ["<r>a</q></r>"]),
    (tag("<r>", text(), ["\n", "\n\n"]), ["<r>a\n", "<r>a\n\n"], ["<r>a\n\n\n"]),
    (tag("<r>", either(FLAG, text()), "</r>"), ['<r>{"a": true}</r>', "<r>{}}</r>"], ["<r></r>a"]),
    (tag("<|user|>", text(max_tokens=3), "<|pad|>"), ["<|user|>a<|pad|>"], ["<|user|>a b c d e f<|pad|>"]),
    (tag(token("<|user|>"), INT, token(5)), ["<|user|>1<|pad|>"], ["<|user|>a<|pad|>", "<|user|>1"]),
    (triggered(X, Y), ["", "<f", "a<f=x>1</f>b", "<f=y>b</f><f=x>1</f>"], ["<f=z>", "<f=x>a</f>", "<f="]),
    (triggered(X, at_least_one=True), ["<f=x>1</f>", "<f=x>1</f>a<f=x>2</f>"], ["", "a<f=x>1</f>"]),
    (triggered(X, stop_after_first=True), ["", "a", "a<f=x>1</f>"], ["<f=x>1</f>a"]),
    (triggered(X, stop_after_first=True, at_least_one=True), ["<f=x>1</f>"], ["", "a<f=x>1</f>"]),
    (triggered(X, excludes=["hi"]), ["a<f=x>1</f>"], ["hi", "<f=x>1</f>hi"]),
    (tag("<r>", triggered(X), "</r>"), ["<r>a<f=x>1</f>b</r>", "<r></r>"], ["<r>a</r>b</r>", "<r><f=x></r>"]),
    (seq(triggered(X, excludes=["END"]), const("END")), ["END", "a<f=x>1</f>END"], ["a", "<f=x>1</f>"]),
    (
        triggered(tag("<|user|>x", INT, "<|pad|>"), triggers=("<|us",)),
        ["a", "a<|user|>x1<|pad|>b"],
        ["<|user|>", "<|user|>y"],
    ),
    (
        separated(X, Y),
        ["", "<f=x>1</f>", "<f=x>1</f>,<f=y>a</f>"],
        ["a", "<f=x>1</f>,", "<f=x>1</f><f=x>1</f>"],
    ),
    (separated(X, separator=""), ["<f=x>1</f><f=x>2</f>"], ["<f=x>1</f>,<f=x>2</f>"]),
    (separated(X, at_least_one=True), ["<f=x>1</f>"], [""]),
    (separated(X, stop_after_first=True), ["", "<f=x>1</f>"], ["<f=x>1</f>,<f=x>1</f>"]),
    (times("optional", X), ["", "<f=x>1</f>"], ["<f=x>1</f><f=x>1</f>"]),
    (times("star", const("ab")), ["", "abab"], ["aba"]),
    (times("plus", X), ["<f=x>1</f>", "<f=x>1</f><f=x>2</f>"], [""]),
    (times("repeat", X, min=1, max=2), ["<f=x>1</f>", "<f=x>1</f><f=x>2</f>"], ["", "<f=x>1</f>" * 3]),
    (times("repeat", const("a"), min=2, max=-1), ["aa", "aaaa"], ["a"]),
    (times("repeat", X, min=0, max=0), [""], ["<f=x>1</f>"]),
    (dispatch(("<x>", INT)), ["a", "a<x>12 b<x>3"], ["<x>", "<x>a"]),
    (dispatch(("<x>", INT), loop=False), ["a", "a<x>12"], ["<x>1 a"]),
    (dispatch(("<x>", seq(INT, const("."))), excludes=["no"]), ["<x>1.a"], ["<x>1.no", "no"]),
    (
        tag("<r>", dispatch(("<x>", INT), loop=False), "</r>"),
        ["<r>a</r>", "<r>a<x>1</r>"],
        ["<r></r></r>"],
    ),
    (token("<|user|>"), ["<|user|>"], ["", "<|pad|>", "a"]),
    (token(2), ["<|user|>"], ["a"]),
    ({"type": "any_tokens", "exclude_tokens": [2]}, ["", "a b"], ["<|user|>"]),
    (tag("<r>", {"type": "any_tokens"}, "</r>"), ["<r>a</r>"], ["<r>a</r></r>"]),
    ({"type": "any_tokens", "max_tokens": 2}, ["", "a"], ["a b c d"]),
    (
        {
            "type": "token_triggered_tags",
            "trigger_tokens": ["<|user|>"],
            "tags": [tag(token(2), INT, token("<|pad|>"))],
            "exclude_tokens": [1],
        },
        ["a", "a<|user|>1<|pad|>b<|user|>2<|pad|>"],
        ["<|user|>a<|pad|>", "<|system|>", "<|pad|>"],
    ),
    (
        {"type": "token_dispatch", "rules": [(2, INT)], "exclude_tokens": ["<|pad|>"]},
        ["a<|user|>1 b"],
        ["<|user|>a", "<|pad|>"],
    ),
]


@pytest.mark.parametrize(("form", "good", "bad"), TAKEN)
def test_each_format_takes_the_texts_that_it_should(
    vocabulary: Vocabulary, form: Json, good: list[str], bad: list[str]
) -> None:
    vocabulary.walk(vocabulary.matcher(grammar(form)))
    for each in (*good, *bad):
        assert takes(vocabulary, form, each) is (each in good), each


STYLES = {
    "qwen_xml": "<parameter=name>\n{}\n</parameter>\n<parameter=age>\n{}\n</parameter>",
    "minimax_xml": '<parameter name="name">{}</parameter>\n<parameter name="age">{}</parameter>',
    "minimax_m3_xml": "]<]minimax[>[<name>{}]<]minimax[>[</name>]<]minimax[>[<age>{}]<]minimax[>[</age>",
    "deepseek_xml": '<｜DSML｜parameter name="name" string="true">{}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="age" string="false">{}</｜DSML｜parameter>',
    "deepseek_v4_1_xml": '<｜DSML｜ parameter name="name" string="true">{}</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="age" string="false">{}</｜DSML｜ parameter>',
    "glm_xml": "<arg_key>name</arg_key><arg_value>{}</arg_value>"
    "<arg_key>age</arg_key><arg_value>{}</arg_value>",
    "kimi_k3_xml": '<|open|>argument key="name" type="string"<|sep|>{}<|close|>argument<|sep|>'
    '<|open|>argument key="age" type="number"<|sep|>{}<|close|>argument<|sep|>',
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("end", ["\n</f>", "</f>"])
def test_members_of_an_object_as_a_model_writes_arguments(
    vocabulary: Vocabulary, style: str, end: str
) -> None:
    """The new line behind the last one may be part of the mark that follows."""
    form = tag("<f>\n", value(PERSON, style=style), end)
    written = "<f>\n" + STYLES[style] + end
    assert takes(vocabulary, form, written.format("Bob", "12"))
    assert not takes(vocabulary, form, written.format("Bob", "old"))
    assert not takes(vocabulary, form, written.format("Bob", "12") + "a")


def test_other_spellings_of_arguments(vocabulary: Vocabulary) -> None:
    gemma = value(PERSON, style="gemma")
    assert takes(vocabulary, gemma, '{age:1,name:<|"|>Bob<|"|>}')
    assert not takes(vocabulary, gemma, '{age:1,name:"Bob"}')


def test_the_older_form_is_one_of_the_newer(vocabulary: Vocabulary) -> None:
    older = {
        "structures": [{"begin": "<f=x>", "schema": INT["json_schema"], "end": "</f>"}],
        "triggers": ["<f="],
    }
    assert structural_grammar(json.dumps(older), SPECIAL) == grammar(triggered(X))


UNCLEAR, TWICE = "cannot be told from what follows", "anyOf"
REFUSED: list[tuple[Json, str, str]] = [
    (seq(text(), INT), "format", UNCLEAR),
    (seq(const("a"), tag("<r>", seq(text(), X), "</r>")), "format.elements[1].content", UNCLEAR),
    (seq(text(), triggered(X)), "format", UNCLEAR),
    (seq({"type": "regex", "pattern": "[a-z]*"}, value({"type": "boolean"})), "format", UNCLEAR),
    (seq(INT, const("5")), "format", UNCLEAR),
    (times("star", FLAG), "format", UNCLEAR),
    (times("star", either(text("<f"), X)), "format", UNCLEAR),
    (seq({"type": "any_tokens", "max_tokens": 3}, const("a")), "format", UNCLEAR),
    (seq(text("1"), {"type": "grammar", "grammar": 'root ::= "1"?'}, FLAG), "format", UNCLEAR),
    (either(INT, FLAG), "format", TWICE),
    (either(INT, seq(times("optional", const("a")), INT)), "format", TWICE),
    (seq(const("a"), {"type": "regex", "pattern": "a("}), "format.elements[1]", "unclosed group"),
    (times("plus", {"type": "grammar", "grammar": 'start: "a" }\nb: "x"'}), "format.content", "}"),
    (tag("a", {"type": "grammar", "grammar": 'root ::= "a" ('}, "b"), "format.content", ""),
    (triggered(X, tag("<f=z>", value({"type": "strin"}), "")), "format.tags[1].content", "strin"),
    (dispatch(("<x>", value({"not": {}}))), "format.rules[0]", "not"),
    (value(False), "format", "no value"),
    (value(PERSON, excludes=["a"]), "format", "special token"),
    (value(PERSON, style="glm_xml", max_whitespace_cnt=0), "format", "max_whitespace_cnt"),
    (value({"type": "array"}, style="qwen_xml"), "format", "'object'"),
    (tag("<r>", text(max_tokens=9), "</r>"), "format.content", "max_tokens"),
    (text(max_tokens=9, max_chars=9), "format", "max_tokens"),
    (token("<|other|>"), "format", "<|other|>"),
    (token(77), "format", "77"),
    (tag("<r>", text(), token("<|other|>")), "format", "<|other|>"),
    (triggered(tag("<g>", INT, "")), "format.tags[0]", "no trigger"),
    (triggered(X, triggers=("<f", "<f=")), "format.tags[0]", "several triggers"),
    (triggered(tag(token(2), INT, "")), "format.tags[0]", "no trigger"),
    (triggered(X, excludes=["<f"]), "format", "excluded"),
    (dispatch(("ab", INT), ("abc", INT)), "format", "begins a tag"),
    (
        {"type": "token_triggered_tags", "trigger_tokens": [2], "tags": [tag(token(3), INT, "")]},
        "format.tags[0]",
        "no trigger",
    ),
]


@pytest.mark.parametrize(("form", "place", "said"), REFUSED)
def test_what_cannot_be_followed_is_named(form: Json, place: str, said: str) -> None:
    with pytest.raises(GrammarError) as refused:
        grammar(form)
    assert str(refused.value).startswith(f"{place}: ")
    assert said in str(refused.value)


def test_texts_that_a_special_token_ends_need_no_other_mark(vocabulary: Vocabulary) -> None:
    form = seq(text(), tag("<|user|>", FLAG, ""))
    assert takes(vocabulary, form, 'a {} <|user|>{"a": true}')
    with pytest.raises(GrammarError, match=UNCLEAR):
        structural_grammar(json.dumps({"format": form}), {})
