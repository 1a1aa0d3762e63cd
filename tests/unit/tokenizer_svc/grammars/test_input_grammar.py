"""The input of a call follows the client's grammar: the same texts as without a call, in every format."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from llguidance import LLMatcher

from ops.model_directory.grammars import GrammarError
from tests.unit.gateway.api.parsers.test_splitter import thoughts_of
from tests.unit.tokenizer_svc.grammars.test_call_grammar import Model, split
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_grammar import call_grammar
from tokenizer_svc.grammars.call_rules import CallRules, Function

PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""What an agent's tool for patches asks for."""
PATCHED = (
    '*** Begin Patch\n*** Add File: a"b\\c/é❄.py\n+\n+x\ty "q" \\n\n+\\\n*** Update File: z\n*** Move to: y\n'
    "@@\n+a\n-\n b\n@@ def f():\n+\n*** End of File\n*** Delete File: q\n*** End Patch"
)
FORMATS = ("hermes", "pythonic", "qwen3_coder", "glm", "gemma4", "mistral_args", "llama3_json")


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("bytes"), request.param)


def rules_of(model: Model, name: str, definition: str, syntax: str = "lark") -> CallRules:
    thoughts = thoughts_of(name, "")
    function = Function("f", PARAMETERS, syntax=syntax, definition=definition)
    return CallRules([function], name, ThoughtRules(thoughts, model.special), required=True, single=True)


def called(name: str, text: str) -> str:
    """A call with this input."""
    quoted = json.dumps(text, ensure_ascii=False)
    arguments = json.dumps({"input": text}, ensure_ascii=False)
    return {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {arguments}}}',
        "mistral_args": f"[TOOL_CALLS]f[ARGS]{arguments}",
        "pythonic": f"[f(input={quoted})]",
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter=input>\n{text}\n</parameter>\n"
        "</function>\n</tool_call>",
        "glm": f"<tool_call>f\n<arg_key>input</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "gemma4": f'<|tool_call>call:f{{input:<|"|>{text}<|"|>}}<tool_call|>',
    }[name]


def takes(model: Model, name: str, definition: str, text: str, syntax: str = "lark") -> bool:
    rules, answer = rules_of(model, name, definition, syntax), called(name, text)
    if not model.takes(rules, answer):
        return False
    (call,) = split(rules, answer).calls
    assert json.loads(call.arguments) == {"input": text}
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_a_patch(model: Model, name: str) -> None:
    for text in (PATCHED, f"{PATCHED}\n", "*** Begin Patch\n*** Delete File:  \n*** End Patch"):
        assert takes(model, name, PATCH, text), text
    for text in (
        f"{PATCHED}\n\n",
        PATCHED[:-1],
        PATCHED.replace("+x", "x"),
        PATCHED.replace("@@ def", "@@def"),
        PATCHED.replace("q\n", "\n"),
        PATCHED.replace("\n", "\r\n"),
        PATCHED.replace("\n", ""),
        "",
    ):
        assert not takes(model, name, PATCH, text), text


REGEXES = [
    # An expression, texts that it matches, and others.
    ("a*", ["", "aaa"], ["b", "a\n"]),
    ("[^x]+", ['"\\\n\té❄\u2028', "/", "\b\f\r"], ["", "ax"]),
    (
        r"^(?P<month>May|July)\s+(\d{1,2})(?:st|th)?$",
        ["May\n\t7th", "July 12"],
        ["May7", "\nMay 7", "May 7\n"],
    ),
    (r'["\\]{2}', ['"\\', "\\\\"], ['"', "\\n"]),
    (r"[\r\n]x", ["\nx", "\rx"], ["\\nx", "nx", "x"]),
    (r"(?i)no(?-i:No)\.", ["NONo.", "noNo."], ["nono.", "noNox"]),
    (r"[a-z&&[^b]]+[[:digit:]]", ["ac7"], ["abc7", "a"]),
    (r"[]^]\x41\u{e9}\u0042", ["]AéB", "^AéB"], ["[AéB"]),
    (r"a/b\/[/]", ["a/b//"], ["a\\/b//"]),
    (r"\p{Greek}\PL\D\W", ["α7a-"], ["a7a-"]),
    (r"(?s).*", ["", "a\n</b>\n", "{}'"], []),
    (r"\d[\d,]\D", ["1,a", "12٣"], ["٣,a", "1٣a", "121"]),
    (r".*", ["", "a"], ["a\nb"]),
    (r"(a|\n|\\n){2,3}b??", ["a\n", "\n\n\\n", "\\n\nab"], ["a", "nn"]),
    (r"(a\n?)*\n\n(\t|a)+", ["\n\na", "aa\na\n\n\t\ta"], ["a", "\na"]),
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("definition", "texts", "others"), REGEXES)
def test_a_regex(model: Model, name: str, definition: str, texts: list[str], others: list[str]) -> None:
    for text in texts:
        assert takes(model, name, definition, text, "regex"), text
    for text in others:
        assert not takes(model, name, definition, text, "regex"), text


GRAMMARS = [
    'start: (A | B)+ "\\n"?\nA: /[a-c]+/\nB: "\\"" /[^"\\n]*/ "\\""',
    'start: line (LF line)*\nline: /[ab\\t"]*/\n%import common.LF',
    'start: A ~ 2..3 [C] D{1,2}\nA: "a" | "\\\\"\nC: "\\n"i | "b"i\nD: /\\s/ & ~"\\t"',
    'start: X+ Y\nX: ~/(?s:.*)b(?s:.*)/ & /[ab\\n"]{1,2}/\nY: "b" "\\n"~0..1',
    'start: "a".."c" r{2,} -> pair\n  | "\\n" ["b"]\nr: /\\n?a?/ "b"',
    'start: x\n!?x: "a" x "b" | _Y\n_Y: /[\\\\\\n]{1,3}|c/',
    'start: A*\nA: (B | "\\n" C)+\nB: "a" C?\nC: "b\\n" | "\\\\"',
    'start: (/a*/ "\\n" | "\\t" /b?/){0,3} /(?s:c.)?/',
    'start: ws? "a" ws "b" ws?\nws: /[ \\n]+/',
    'start: "a" (n | t){2,3} "a"\nn: "\\n" n?\nt: "\\t"+ "b"',
]
ALPHABET = "aabbc\n\n\t\"\\ é'"


@pytest.mark.parametrize("definition", GRAMMARS)
def test_the_same_texts_as_without_a_call(definition: str, tmp_path: Path) -> None:
    """The library's own reading of the grammar is the reference."""
    model, draw = Model(tmp_path, special=False), random.Random(definition)
    plain = LLMatcher.grammar_from_lark(f"%llguidance {{}}\n{definition}")
    formats = {
        name: rules_of(model, name, definition) for name in ("hermes", "pythonic", "qwen3_coder", "glm")
    }
    grammars = {name: LLMatcher.grammar_from_lark(call_grammar(rules)) for name, rules in formats.items()}
    taken = 0
    for text in ["", *("".join(draw.choices(ALPHABET, k=draw.randrange(1, 8))) for _ in range(40))]:
        expected = model.follows(plain, text)
        found = {name: model.follows(grammar, called(name, text)) for name, grammar in grammars.items()}
        assert found == dict.fromkeys(found, expected), text
        taken += expected
    for seed in range(15):  # texts that the grammar finds itself
        text = drawn(model, plain, random.Random(seed))
        if text is None:
            continue
        found = {name: model.follows(grammar, called(name, text)) for name, grammar in grammars.items()}
        assert found == dict.fromkeys(found, True), text
        taken += 1
    assert taken > 10


def drawn(model: Model, grammar: str, draw: random.Random) -> str | None:
    """A random text that the grammar accepts; None if none was found."""
    matcher, text = model.vocabulary.matcher(grammar), ""
    for _ in range(40):
        if matcher.is_accepting() and draw.random() < 0.2:
            return text
        found = [each for each in ALPHABET if matcher.validate_tokens(ids := model.tokens(each)) == len(ids)]
        if not found:
            return text if matcher.is_accepting() else None
        text += (each := draw.choice(found))
        assert matcher.consume_tokens(model.tokens(each))
    return None


def test_what_is_ignored_may_stand_between_all_terminals(model: Model) -> None:
    definition = (
        'start: "a" b* NUM\nb: "b"\n%ignore WS\n%ignore /#[^\\n]*/\n%import common (WS, INT)\nNUM: INT'
    )
    for name in FORMATS:
        for text in ("a1", " a\n\tb #7\nb 12\n", "ab1#"):
            assert takes(model, name, definition, text), text
        for text in ("a", "a\\n1", "a 1 2"):
            assert not takes(model, name, definition, text), text


@pytest.mark.parametrize("name", CALLS)
def test_every_format_has_grammars_of_inputs(model: Model, name: str) -> None:
    matcher = model.matcher(rules_of(model, name, PATCH))
    model.vocabulary.walk(matcher)
    assert not matcher.is_error()


def test_an_answer_is_free_to_be_a_text(model: Model) -> None:
    rules = CallRules(
        [Function("f", PARAMETERS, syntax="regex", definition="a+"), Function("g", None)],
        "hermes",
        ThoughtRules("", model.special),
    )
    wrong = called("hermes", "b")
    assert model.takes(rules, "It is b.")
    assert model.takes(
        rules,
        f'It is a.{called("hermes", "aa")}\n<tool_call>\n{{"name": "g", "arguments": {{}}}}\n</tool_call>',
    )
    assert not model.takes(rules, wrong)


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("start: <|eos|>", "line 1: '<|eos|>': a special token is not supported"),
        ("start: @other", "a reference to another grammar is not supported"),
        ('start: "a"\nX.2: "b"', "line 2: .*a priority is not supported"),
        ('start[lazy]: "a"', "an attribute is not supported"),
        ("start: %json {}", "'%json': it is not supported"),
        ('start: "a"\n%declare X', "'%declare': it is not supported"),
        ("%import python.NAME\nstart: NAME", "an import of anything but 'common' is not supported"),
        ("%import common.NAME\nstart: NAME", "'common' has no 'NAME'"),
        ('start: pair{"a"}', "a template is not supported"),
        ("start: x::0", "a parameter is not supported"),
        ('start: "a" & "b"', "'&' in a rule is not supported"),
        ('start: A\nA: b\nb: "b"', "the rule 'b' in a terminal is not supported"),
        ('begin: "a"', "there is no rule 'start'"),
        ("start: b", "'b' is not defined"),
        ("start: B", "'B' is not defined"),
        ("start: A\nA: B\nB: A", "'A' is part of itself"),
        ("start: start", "no text follows it"),
        ('start: "a"\nstart: "b"', "'start' is defined twice"),
        ("start: 'a'", "line 1: \"'a'\" is not Lark"),
        ('start: ("a"', "line 1: '\\)' is missing"),
        ('start: "a" )', "line 1: '\\)' is not expected"),
        ('start: "\\u0001"', "characters that this model's calls cannot spell"),
        ('start: "c".."a"', "a range needs two characters in their order"),
        ("start: /a(?=b)/", "line 1: '\\(\\?=b' is not supported in a regex"),
        (r"start: /a\b/", r"'\\b' is not supported in a regex"),
        ("start: /a^b/", r"'\^' within a regex is not supported"),
        ("start: /a/x", "the flag 'x' of a regex is not supported"),
        ("start: /(a/", "a group of a regex is not closed"),
        ("start: /[a/", "a class of a regex is not closed"),
        ("start: /[b-a]/", "invalid"),
        (r"start: /\p{Klingon}/", "Unicode property"),
    ],
)
def test_what_cannot_be_followed_is_refused(definition: str, said: str) -> None:
    function = Function("f", PARAMETERS, syntax="lark", definition=definition)
    with pytest.raises(GrammarError, match=said):
        call_grammar(CallRules([function], "hermes", ThoughtRules("", {})))


def test_a_mark_is_no_part_of_an_input_that_stands_as_it_is() -> None:
    function = Function("f", PARAMETERS, syntax="lark", definition='start: "</parameter>"')
    with pytest.raises(GrammarError, match="cannot spell: '</parameter>'"):
        call_grammar(CallRules([function], "qwen3_coder", ThoughtRules("", {})))
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory), special=False)
        assert takes(model, "qwen3_coder", "start: /(?s:.*)/", "</a>\n</parameter\n")
        assert not takes(model, "qwen3_coder", "start: /(?s:.*)/", "</parameter>\n")
