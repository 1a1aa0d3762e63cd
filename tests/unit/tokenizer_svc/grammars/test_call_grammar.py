"""Whatever the grammar of calls accepts, the gateway reads as calls whose arguments follow their schemas."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.api.parsers.calls import functions_of
from gateway.api.parsers.splitter import Pieces, Splitter
from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.model_directory.special_tokens import is_special
from proto.tokenizer_pb2 import BARE_KEYS, ELEMENTS, PYTHON_CALLS
from tests.unit.gateway.api.parsers.test_splitter import SAID, form_of, thoughts_of
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.formats.thought_table import THOUGHTS
from tokenizer_svc.grammars.call_grammar import call_grammar
from tokenizer_svc.grammars.call_rules import CallRules, Function

MARKS = sorted(
    {
        mark
        for entry in CALLS.values()
        for mark in (
            *entry.begin,
            entry.end,
            *entry.delimiters,
            "<think>",
            "</think>",
            "<|message|>",
            "<|constrain|>",
        )
        if " " not in mark and mark.startswith("<") and mark.count("<") == 1
    }
    | {"<|channel|>", "<|start|>", "<|end|>", "[TOOL_CALLS]", "[ARGS]", "<|channel>", "<channel|>"}
    | {"<|open|>", "<|close|>", "<|sep|>", "<|eom|>", "]<]minimax[>[", ">>>"}
    | {
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        '<|"|>',
        "<escape>",
        "<|message_model|>",
        "<|end_message|>",
    }
    | {"<|content_text|>", "<|content_invoke_tool_json|>", "<|tool_arg:value|>", "[unused11]", "[unused12]"}
    | {"<tool_sep>"}
)
ARGUMENT = "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>"
END = 256
SEEDS = 8


class Model:
    """A vocabulary of bytes and marks, and what it makes of grammars."""

    def __init__(self, directory: Path, special: bool) -> None:
        """`special`: the marks are special to a grammar, and half of them to the tokenizer; else text."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({each: number for number, each in enumerate(alphabet)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<eos>"])
        for number, mark in enumerate(MARKS if special else ()):
            tokenizer.add_tokens([AddedToken(mark, special=number % 2 == 0 or not is_special(mark, False))])
        tokenizer.save(str(directory / "tokenizer.json"))
        self.tokenizer, self.special = tokenizer, {}
        if special:
            self.special = {mark: tokenizer.token_to_id(mark) for mark in MARKS}
        self.vocabulary = Vocabulary(directory, tokenizer.get_vocab_size(), [END])

    def matcher(self, rules: CallRules) -> LLMatcher:
        return self.vocabulary.matcher(LLMatcher.grammar_from_lark(call_grammar(rules)))

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def takes(self, rules: CallRules, text: str) -> bool:
        """Whether `text` is a whole answer."""
        return self.accepts(call_grammar(rules), text)

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a grammar in Lark's notation accepts `text`."""
        return self.follows(LLMatcher.grammar_from_lark(grammar), text)

    def follows(self, grammar: str, text: str) -> bool:
        """Whether a grammar as the library gives it accepts `text`."""
        matcher, tokens = self.vocabulary.matcher(grammar), self.tokens(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("bytes"), request.param)


PARTS = [
    *MARKS,
    "</parameter>",
    "</function>",
    "</arg_value>",
    "<arg_key>",
    '"',
    "'",
    "\\",
    "\\n",
    "{",
    "}",
    "</",
    "<",
]
PARTS += [
    "<parameter=a>\n",
    '<parameter name="a">',
    '<｜DSML｜parameter name="a" string="true">',
    '<param name="a">',
    '<atem:parameter name="a">',
    '<steptml:parameter name="a">',
    "<|tool_arg:start|>a<|tool_arg:value|>",
    "<ifm|arg_key>a</ifm|arg_key><ifm|arg_value>",
    '<|open|>argument key="a" type="string"<|sep|>',
    "]<]minimax[>[<a>",
    "]<]minimax[>[<item>",
    "<![CDATA[",
    "]]>",
    "</invoke>",
    "<function=f>",
    '{"name": "f", "arguments": {}}',
    "[f()]",
    ", ",
    ": ",
    "é",
    "\n",
    "\u2028",
    "7",
]
CLOSING = [
    '"',
    "'",
    "}",
    "]",
    ")",
    "\n</parameter>\n",
    "</parameter>\n",
    "</｜DSML｜parameter>\n",
    "</invoke>\n",
    "</｜DSML｜invoke>\n",
    "</arg_value>",
    "</think>",
    "<|end|>",
    "</function>",
    "</param>",
    "]]></param>",
    "<|close|>argument<|sep|>",
    "</｜DSML｜ parameter>\n",
    "</｜DSML｜ invoke>\n",
    "</｜GCML｜parameter>\n",
    "</｜GCML｜invoke>\n",
    "</longcat_arg_value>\n",
    "</ifm|arg_value>",
    "</param_value>",
    "</steptml:parameter>",
    "<|tool_arg:end|>",
    "</atem:parameter>\n",
    "]<]minimax[>[</a>",
    *MARKS,
]


def walk(model: Model, rules: CallRules, seed: int) -> str | None:
    """A random answer that the grammar accepts, with all that is confusing in it; None if it finds no end."""
    draw, matcher, tokens = random.Random(seed), model.matcher(rules), []
    length = draw.randrange(120)
    for step in range(1500):
        if matcher.is_accepting() and (step > length or draw.random() < 0.2 or matcher.is_stopped()):
            return model.tokenizer.decode(tokens, skip_special_tokens=False)
        closing = step > length
        found: list[int] = []
        if draw.random() < (0.8 if closing else 0.5):
            tried = model.tokens(draw.choice(CLOSING if closing else PARTS))
            found = tried if matcher.validate_tokens(tried) == len(tried) else []
        if not found:
            bias = matcher.compute_logit_bias()
            allowed = [token for token in compress(range(len(bias)), bias) if token != END]
            if not allowed:
                return None
            found = [draw.choice(allowed)]
        assert matcher.consume_tokens(found)
        tokens += found
    return None


def schema_of(draw: random.Random, depth: int = 0) -> Any:
    """A random schema of the part that all formats follow."""
    kinds: list[Callable[[], Any]] = [
        lambda: {"type": "string", "description": "A text."},
        lambda: (
            {"type": "string"}
            | draw.choice([{"maxLength": 3}, {"minLength": 1, "maxLength": 9}, {"minLength": 2}])
        ),
        lambda: {"type": "string", "enum": draw.choice([["red", 'b"l', "it's\n"], ["</x>", "é"]])},
        lambda: {"type": "string", "format": draw.choice(["date", "date-time", "uuid"])},
        lambda: {"enum": [1, "a'\"", None, True, [1, {"a": False}]]},
        lambda: {"type": "integer"} | draw.choice([{}, {"minimum": -3, "maximum": 120}]),
        lambda: {"type": "number"} | draw.choice([{}, {"exclusiveMinimum": 0, "maximum": 1}]),
        lambda: {"type": ["boolean", "null"], "title": "B"},
        lambda: {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        lambda: {"$ref": "#/$defs/point"},
    ]
    if depth < 2:
        kinds += [
            lambda: {"type": "array", "items": schema_of(draw, depth + 1), "maxItems": draw.choice([1, 3])},
            lambda: {"type": "array", "items": {"type": "integer"}, "minItems": 2},
            lambda: object_of(draw, depth + 1),
            lambda: {"type": "object", "additionalProperties": {"type": "integer"}},
        ]
    return draw.choice(kinds)()


def object_of(draw: random.Random, depth: int = 0) -> Any:
    properties = {name: schema_of(draw, depth) for name in ("a", "city", "b_2", "x")[: draw.randrange(5)]}
    required = [name for name in properties if draw.random() < 0.5]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


POINT = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/point"}, "x": {"type": "integer"}},
    "required": ["x"],
}


def function_of(draw: random.Random, name: str) -> Function:
    return Function(
        name, object_of(draw) | {"$defs": {"point": POINT | {"additionalProperties": False}}}, strict=True
    )


def split(rules: CallRules, text: str) -> Pieces:
    form = form_of(rules.calls, rules.before.thoughts, thinking=rules.before.thinking)
    tools = [{"function": {"name": each.name, "parameters": each.parameters}} for each in rules.functions]
    splitter = Splitter(form, functions_of(tools))
    first, last = splitter.add(text), splitter.finish()
    return Pieces(first.reasoning + last.reasoning, first.content + last.content, first.calls + last.calls)


@pytest.mark.parametrize("name", CALLS)
def test_what_the_grammar_accepts_is_read_as_valid_calls(model: Model, name: str) -> None:
    called, messages = 0, name in SAID and THOUGHTS[name].message
    for seed in range(SEEDS):
        draw = random.Random(f"{name} {seed}")
        functions = [function_of(draw, each) for each in ("f", "get_time")]
        required, single, thinking = seed % 3 > 0, seed % 4 == 0, seed % 5 == 0 and not messages
        before = ThoughtRules(thoughts_of(name, "think"), model.special, thinking)
        rules = CallRules(functions, name, before, required, single)
        text = walk(model, rules, seed)
        if text is None:
            continue
        found = split(rules, text)
        assert len(found.calls) >= required, text
        assert len(found.calls) <= 1 or not single, text
        if required and not messages:
            assert found.content == "", text
        for call in found.calls:
            schema = next(each.parameters for each in functions if each.name == call.name)
            assert jsonschema_rs.is_valid(schema, json.loads(call.arguments)), text
        called += len(found.calls)
    assert called >= SEEDS / 2


F = Function(
    "f",
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'
ANSWERS = [
    # An answer; whether it is taken if a call is required, if none is, and if the prompt has begun a thought.
    (CALL, True, True, False),
    (f"<think>Hm {WRONG}</think>\n\n{CALL}", True, True, True),
    (f"Hm {WRONG}</think>\n\n{CALL}", False, False, True),
    (f"{CALL}\n{CALL}", True, True, False),
    (f"{CALL}\n", True, True, False),
    (f"{CALL}\n{CALL}\n", True, True, False),
    (f"{CALL}\n\n", False, False, False),
    (f"Let me see.\n{CALL}", False, True, False),
    ("Let me see.", False, True, False),
    ("", False, True, False),
    (f"Let me see.\n{WRONG}", False, False, False),
    (f"<think>Hm.</think>Let me see.\n{WRONG}", False, False, False),
    (f"{CALL}\n{WRONG}", False, False, False),
    ("<tool_call>\nnothing", False, False, False),
    ("<think>Hm.", False, False, False),
]


@pytest.mark.parametrize(("text", "required", "free", "thinking"), ANSWERS)
def test_what_an_answer_may_be(model: Model, text: str, required: bool, free: bool, thinking: bool) -> None:
    def takes(thinking: bool = False, **more: bool) -> bool:
        before = ThoughtRules("think", model.special, thinking)
        return model.takes(CallRules([F], "hermes", before, **more), text)

    if model.special and WRONG in text.partition("</think>")[0]:
        pytest.skip("within a thought there are no special tokens")
    assert takes(required=True) is required
    assert takes() is free
    assert takes(required=True, thinking=True) is thinking
    assert takes(required=True, single=True) is (required and text.endswith(CALL) and text.count(CALL) < 2)


def test_a_new_line_ends_calls_only_where_it_parts_them(model: Model) -> None:
    """Else a model that writes one before its next call could not call again."""
    rules = CallRules([F], "mistral_args", ThoughtRules("", model.special), required=True)
    call = '[TOOL_CALLS]f[ARGS]{"a": "x"}'
    assert model.takes(rules, call * 2)
    assert not model.takes(rules, f"{call}\n")


TEXT = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}


@pytest.mark.parametrize("name", [name for name in CALLS if name != "llama3_json"])
def test_an_answer_has_calls_or_a_text_in_its_own_shape(model: Model, name: str) -> None:
    """Of every format: what the rules alone accept as calls, and the text."""
    said = '{"name": 7}'
    thoughts = thoughts_of(name, "")
    rules = CallRules([F], name, ThoughtRules(thoughts, model.special), text_schema=json.dumps(TEXT))
    text = f"{SAID[name][0]}{said}" if thoughts else said
    assert model.takes(rules, text)
    assert split(rules, text).content == said
    assert not model.takes(rules, text.replace("7", '"7"'))
    assert not model.takes(rules, text.replace(said, "Let me see."))
    calls = replace(rules, text_schema="", required=True)
    walks = filter(None, (walk(model, calls, seed) for seed in range(SEEDS)))
    assert model.takes(rules, next(each for each in walks if not split(calls, each).content))


def test_a_thought_comes_before_an_answer_in_its_own_shape(model: Model) -> None:
    for thinking, text in (
        (False, '<think>Hm.</think>\n\n{"name": 7}'),
        (True, 'Hm.</think>\n\n{"name": 7}'),
    ):
        before = ThoughtRules("think", model.special, thinking)
        assert model.takes(CallRules([F], "hermes", before, text_schema=json.dumps(TEXT)), text)


def test_keywords_of_a_text_are_passed_over_if_it_is_lenient(model: Model) -> None:
    rules = CallRules([F], "hermes", ThoughtRules("", {}), text_schema='{"type": "null", "not": {}}')
    assert model.takes(replace(rules, text_lenient=True), "null")
    with pytest.raises(GrammarError, match="not"):
        model.matcher(rules)


@pytest.mark.parametrize("name", ["json", "llama3_json", "pythonic"])
def test_without_a_mark_the_first_character_tells(model: Model, name: str) -> None:
    calls = {"json": '[{"name": "f", "arguments": {"a": "x"}}]', "pythonic": '[f(a="x")]'}
    calls["llama3_json"] = calls["json"][1:-1].replace("arguments", "parameters")
    rules = CallRules([F], name, ThoughtRules("", model.special))
    for text in (calls[name], f" \n{calls[name]}", "Hm.", f"Hm. {calls[name]}", "<arg_key>"):
        assert model.takes(rules, text), text
    for text in (calls[name].replace('"x"', "5"), f"{CALLS[name].opening[0]}1", f"\x1c{calls[name]} "):
        assert not model.takes(rules, text), text


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        ("hermes", Function('f"g', None), "a name has no "),
        ("glm", Function("f\n", None), "a name has no "),
        ("gemma4", Function("f{", None), "a name has no "),
        ("harmony", Function(" f", None), "a name has no "),
        ("pythonic", Function("f-g", None), "which cannot have this name"),
        ("pythonic", Function("f", {"properties": {"in": {}}}), "cannot spell the argument 'in'"),
        ("pythonic", Function("f", {"properties": {"\ufb01n": {}}}), "cannot spell the argument '\ufb01n'"),
        ("glm", Function("f", {"properties": {"a<": {}}}), "cannot spell the argument 'a<'"),
        ("kimi_k3", Function("f", {"properties": {"a": {"type": 5}}}, True), "5 is not a type"),
        ("minimax_m2", Function("f", {"properties": {'a"': {}}}), "cannot spell the argument 'a\"'"),
        ("glm", Function("f", {"properties": {"a": {"not": {}}}}, strict=True), "argument 'a': 'not'"),
        ("glm", Function("f", {"anyOf": [{}]}, strict=True), "'anyOf' is not supported"),
        (
            "qwen3_coder",
            Function("f", {"properties": {"a": {"type": "string", "enum": ["</parameter>"]}}}),
            "values",
        ),
        ("gemma4", Function("f", {"properties": {"a:b": {}}}), "cannot spell the argument 'a:b'"),
        ("gemma4", Function("f", {"properties": {"a": {"properties": {"b{": {}}}}}), "argument 'a': .* 'b{'"),
        ("gemma4", Function("f", {"properties": {"a": {"enum": ['<|"|>']}}}), "values"),
        ("gemma4", Function("f", {"properties": {"a": {"const": ["<tool_call|>"]}}}), "values"),
        ("hermes", Function("f", {"type": "string"}), "must be 'object'"),
    ],
)
def test_what_a_format_cannot_spell_is_refused(name: str, function: Function, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        call_grammar(CallRules([function], name, ThoughtRules("", {})))


def test_an_argument_s_name_may_be_of_any_script(model: Model) -> None:
    names = {"größe": {"type": "integer"}, "数量": {"type": "integer"}}
    rules = CallRules([Function("f", {"properties": names})], "pythonic", ThoughtRules("", model.special))
    text = "[f(größe=5, 数量=7)]"
    assert model.takes(rules, text)
    (call,) = split(rules, text).calls
    assert json.loads(call.arguments) == {"größe": 5, "数量": 7}


def test_a_function_that_is_not_strict_may_have_any_schema(model: Model) -> None:
    function = Function(
        "f", {"properties": {"a": {"type": "integer", "not": {"const": 5}}}, "patternProperties": {}}
    )
    rules = CallRules([function], "glm", ThoughtRules("", model.special), required=True)
    assert model.takes(rules, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n</tool_call>")
    rules = CallRules([function], "json", ThoughtRules("", model.special), required=True)
    assert model.takes(rules, '[{"name": "f", "arguments": {"a": 5}}]')
    assert not model.takes(rules, '[{"name": "f", "arguments": {"a": 5, "b": 1}}]')


SLOPPY = [
    ({"type": "any"}, 5),
    ({"type": "array", "minItems": 2, "maxItems": 1}, []),
    ({"$ref": "#/$defs/none"}, {"x": [None]}),
    (None, True),
]


@pytest.mark.parametrize(("schema", "value"), SLOPPY)
@pytest.mark.parametrize("name", ["hermes", "glm", "gemma4", "pythonic"])
def test_of_a_loose_function_the_names_of_arguments_are_followed(
    model: Model, name: str, schema: Any, value: Any
) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": schema, "b": {"type": "string", "maxLength": "x"}, "no\n": {}},
        "required": ["b", "no\n", 5] if name == "hermes" else ["b", "unlisted"],
    }
    rules = CallRules(
        [Function("f", parameters, loose=True)], name, ThoughtRules("", model.special), required=True
    )
    if name == "hermes":
        rules.functions[0].parameters["required"].pop(1)
    text = json.dumps(value)
    call = {
        "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"a": {}, "b": "x"}}}}\n</tool_call>',
        "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n"
        "<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
        "gemma4": '<|tool_call>call:f{{a:{},b:<|"|>x<|"|>}}<tool_call|>',
        "pythonic": '[f(a={}, b="x")]',
    }[name]
    if name == "pythonic":
        text = repr(value)
    if name == "gemma4":
        text = text.replace('"', "")
    answer = call.format(text)
    assert model.takes(rules, answer)
    (found,) = split(rules, answer).calls
    assert json.loads(found.arguments) == {"a": value, "b": "x"}
    assert not model.takes(rules, answer.replace("b", "c"))


OWN = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
ROOTS = {
    "reference": {"$ref": "#/definitions/Own", "definitions": {"Own": OWN}},
    "all of": {"allOf": [{"$ref": "#/$defs/Own"}, {"required": ["a"]}], "$defs": {"Own": OWN}},
    "any of": {"anyOf": [OWN, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
}
"""As of zod-to-json-schema with a name, and of pydantic's recursive models."""


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("how", [{}, {"strict": True}, {"loose": True}], ids=["followed", "strict", "loose"])
@pytest.mark.parametrize("name", ["qwen3_coder", "gemma4", "pythonic"])
def test_arguments_may_be_listed_elsewhere(model: Model, name: str, how: Any, root: str) -> None:
    empty, call = {
        "qwen3_coder": (
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>",
        ),
        "gemma4": ("<|tool_call>call:f{}<tool_call|>", '<|tool_call>call:f{a:<|"|>7<|"|>}<tool_call|>'),
        "pythonic": ("[f()]", '[f(a="7")]'),
    }[name]
    function = Function("f", ROOTS[root], **how)
    rules = CallRules([function], name, ThoughtRules("", model.special), required=True)
    if root == "any of" and function.strict:
        with pytest.raises(GrammarError, match="'anyOf' is not supported"):
            call_grammar(rules)
        return
    assert model.takes(rules, call)
    assert model.takes(rules, empty) is (root == "any of")
    tool = {"function": {"name": "f", "parameters": ROOTS[root]}}
    splitter = Splitter(form_of(name, thoughts_of(name)), functions_of([tool]))
    (found,) = (*splitter.add(call).calls, *splitter.finish().calls)
    assert json.loads(found.arguments) == {"a": "7"}


def test_a_loose_function_that_lists_no_arguments_takes_any(model: Model) -> None:
    for parameters in ({"$ref": "#/none"}, {"type": "None"}, {"properties": 7}):
        function = Function("f", parameters, loose=True)
        rules = CallRules([function], "json", ThoughtRules("", model.special), required=True)
        for arguments in ("{}", '{"x": [1]}'):
            assert model.takes(rules, f'[{{"name": "f", "arguments": {arguments}}}]')
        assert not model.takes(rules, '[{"name": "f", "arguments": []}]')


def test_a_required_argument_that_is_not_listed_follows_what_the_schema_says_of_such(model: Model) -> None:
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a", "x"]}
    counted = Function("f", schema | {"additionalProperties": {"type": "integer"}}, True)
    rules = CallRules([counted], "json", ThoughtRules("", model.special), required=True)
    answer = '[{"name": "f", "arguments": {"a": "q", "x": %s}}]'
    assert model.takes(rules, answer % 1)
    assert not model.takes(rules, answer % '"str"')


@pytest.mark.parametrize("strict", [False, True])
def test_a_required_argument_that_is_not_listed_may_be_any(model: Model, strict: bool) -> None:
    function = Function("f", {"properties": {}, "required": ["q"]}, strict)
    for name, call in (
        ("json", '[{{"name": "f", "arguments": {{"q": {}}}}}]'),
        ("glm", "<tool_call>f\n<arg_key>q</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ):
        rules = CallRules([function], name, ThoughtRules("", model.special), required=True)
        assert model.takes(rules, call.format("[5]"))
        assert not model.takes(rules, call.format("[5]").replace("q", "r"))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("json", '[{"name": "f", "arguments": {"a": 1, "b_2": 2}}]'),
        ("glm", f"<tool_call>f\n{ARGUMENT % ('a', 1)}\n{ARGUMENT % ('b_2', 2)}\n</tool_call>"),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b_2>\n2\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        (
            "kimi_k3",
            '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
            '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|>'
            '<|open|>argument key="b_2" type="number"<|sep|>2<|close|>argument<|sep|>'
            "<|close|>call<|sep|><|close|>tools<|sep|>",
        ),
        ("gemma4", "<|tool_call>call:f{a:1,b_2:2}<tool_call|>"),
        ("pythonic", "[f(a=1, b_2=2)]"),
    ],
)
def test_arguments_of_any_names_where_none_are_listed(
    model: Model, name: str, call: str, strict: bool
) -> None:
    for others, takes in ((True, True), ({"type": "integer"}, True), ({"type": "boolean"}, False)):
        parameters = {"type": "object", "properties": {}, "additionalProperties": others}
        rules = CallRules(
            [Function("f", parameters, strict)], name, ThoughtRules("", model.special), required=True
        )
        assert model.takes(rules, call) is takes
    (found,) = split(rules, call).calls
    assert json.loads(found.arguments) == {"a": 1, "b_2": 2}
    assert not model.takes(rules, call.replace("b_2", "class" if name == "pythonic" else "<"))


@pytest.mark.parametrize("properties", [None, {}])
def test_null_is_an_absent_keyword_of_a_function(model: Model, properties: Any) -> None:
    parameters = {
        "type": None,
        "properties": properties,
        "required": None,
        "additionalProperties": None,
    }
    rules = CallRules(
        [Function("f", parameters, strict=True)], "json", ThoughtRules("", model.special), required=True
    )
    assert model.takes(rules, '[{"name": "f", "arguments": {}}]')
    assert model.takes(rules, '[{"name": "f", "arguments": {"a": 1}}]') is (properties is None)


@pytest.mark.parametrize("name", ["muse_glimmer", "functionary32", "harmony"])
def test_a_name_may_begin_like_what_stands_before_texts_and_thoughts(model: Model, name: str) -> None:
    calls = {
        "muse_glimmer": ' to={0}<|message|><atem:function_calls>\n<atem:invoke name="{0}">\n</atem:invoke>\n'
        "</atem:function_calls>",
        "functionary32": "{0}\n{{}}",
        "harmony": "<|channel|>commentary to=functions.{0} <|constrain|>json<|message|>{{}}",
    }
    head, between = SAID[name]
    for called in ("search", "use_it", "selfie", "users", "all_of_it", "al", "final"):
        call = calls[name].format(called)
        function = Function(called, None)
        for required in (False, True):
            rules = CallRules([function], name, ThoughtRules(name, model.special), required)
            assert model.takes(rules, call), call
            if between:
                assert model.takes(rules, f"{head}Hm.{between}{call}"), call
            (found,) = split(rules, call).calls
            assert found.name == called


@pytest.mark.parametrize(
    ("schema", "told", "written", "taken"),
    [
        ({"type": "string"}, "string", "x", True),
        ({"type": "string"}, "number", "5", False),
        ({"type": "integer"}, "number", "5", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string", "x", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "x", False),
        ({"type": ["integer", "array"], "items": {}}, "array", "[1]", True),
        ({"$ref": "#/$defs/text"}, "string", "x", True),
        ({"enum": ["x", 5]}, "string", "x", True),
        ({"enum": ["x", 5]}, "number", "5", True),
        ({"enum": ["x", 5]}, "string", "5", False),
        ({}, "object", '{"b": 1}', True),
        ({}, "string", "x", True),
    ],
)
def test_a_format_may_tell_the_type_of_a_value(
    model: Model, schema: Any, told: str, written: str, taken: bool
) -> None:
    parameters = {"properties": {"a": schema}, "$defs": {"text": {"type": "string"}}}
    before = ThoughtRules("kimi_k3", model.special)
    rules = CallRules([Function("f", parameters)], "kimi_k3", before, required=True)
    call = (
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
        f'<|open|>argument key="a" type="{told}"<|sep|>{written}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    assert model.takes(rules, call) is taken
    assert model.takes(rules, f"<|open|>response<|sep|>{call}") is taken


STRINGS: list[Any] = [
    {"enum": ["5", "x"]},
    {"const": "true"},
    {"type": ["string"], "maxLength": 4},
    {"type": ["string", "null"], "enum": ["5", "null"]},
    {"enum": ["", None, "null"]},
    {"$ref": "#/$defs/unit"},
    {"allOf": [{"$ref": "#/$defs/unit"}], "default": "5"},
    {"anyOf": [{"const": "5"}, {"type": "string", "pattern": "^[a-c]{1,3}$"}]},
    {"type": "array", "items": {"$ref": "#/$defs/unit"}, "minItems": 1},
    {"type": "array", "items": {"type": "string"}, "enum": [["5", "a"]]},
    {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "enum": [[[], ["5"]]]},
    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "enum": [["5", None]]},
    {"type": "object", "properties": {"k": {"type": "string"}}, "const": {"k": "5", "l": "5"}},
    {"type": "object", "additionalProperties": {"type": "string"}, "const": {"k": "null"}},
    {"enum": [["5", "a b"], {"k": "true", "l": "a"}]},
]
"""Schemas of texts. Who reads the call takes a value of some of them as it stands, and of others as JSON."""


@pytest.mark.parametrize("schema", STRINGS)
def test_texts_are_written_as_they_are_read(model: Model, schema: Any) -> None:
    unit = {"unit": {"enum": ["5", "C"]}}
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "$defs": unit}
    for name in (name for name, entry in CALLS.items() if entry.argument and entry.syntax != BARE_KEYS):
        strict, before = "allOf" not in schema, ThoughtRules(thoughts_of(name, ""), model.special)
        rules = CallRules([Function("f", parameters, strict)], name, before, True, True)
        texts = [text for seed in range(2) if (text := walk(model, rules, seed)) is not None]
        for text in texts:
            (call,) = split(rules, text).calls
            assert jsonschema_rs.is_valid(parameters, json.loads(call.arguments)), text
        assert texts


@pytest.mark.parametrize("value", [{"type": "string"}, {"const": "x"}, {"enum": ["x", {"function": "x"}]}])
def test_a_tag_may_be_spelled_like_a_mark(model: Model, value: Any) -> None:
    """The model then writes it with the mark's token."""
    parameters = {"type": "object", "properties": {"function": value}, "required": ["function"]}
    rules = CallRules([Function("f", parameters, True)], "minimax_m3", ThoughtRules("", model.special), True)
    texts = [walk(model, rules, seed) for seed in range(3)]
    plain = """]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="f">]<]minimax[>[<function>x]<]minimax[>[</function>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>"""
    assert "</function>" in MARKS
    assert all(model.takes(rules, text) for text in (plain, *filter(None, texts)))


@pytest.mark.parametrize("name", ["glm", "minimax_m3"])
def test_a_text_of_a_loose_function_is_written_as_it_is_read(model: Model, name: str) -> None:
    properties = {"a": {"$ref": "#/$defs/unit"}, "b": {"$ref": "#/$defs/none"}, "c": {"enum": 5}}
    parameters = {"properties": properties, "required": ["a"], "$defs": {"unit": {"enum": ["5"]}}}
    before = ThoughtRules(thoughts_of(name, ""), model.special)
    rules = CallRules([Function("f", parameters, loose=True)], name, before, required=True)
    call = {
        "glm": "<tool_call>f<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>",
        "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>5'
        "]<]minimax[>[</a>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    }[name]
    assert model.takes(rules, call)
    assert model.takes(rules, call.replace("5", "a text")), "any one"
    assert [json.loads(each.arguments) for each in split(rules, call).calls] == [{"a": "5"}]


NAMES = [
    "mcp/get",
    "a:b",
    "a:7",
    "get weather",
    "天气",
    "functions.x",
    "x json",
    "größe's",
    "a,b;(c)=d",
    "$name",
    "a&b",
    "a&amp;b",
]


FREE = [name for name in CALLS if CALLS[name].syntax != PYTHON_CALLS]
"""Formats whose functions may have any name."""


# Each format with a quarter of the names, its neighbours with the others.
@pytest.mark.parametrize(
    ("name", "called"),
    [(name, called) for at, name in enumerate(FREE) for called in NAMES[at % 4 :: 4]],
)
def test_a_name_may_have_other_characters(model: Model, name: str, called: str) -> None:
    """Whatever the grammar spells is read as a call of this function."""
    before = ThoughtRules(thoughts_of(name, ""), model.special)
    rules = CallRules([Function(called, None)], name, before, required=True, single=True)
    text = next(text for seed in range(SEEDS) if (text := walk(model, rules, seed)) is not None)
    assert [(call.name, call.arguments) for call in split(rules, text).calls] == [(called, "{}")], text


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>"),
        ("glm", "<tool_call>f<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"),
        (
            "hy4",
            "<tool_calls>\n<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>\n</tool_calls>",
        ),
    ],
)
def test_new_lines_of_a_call_are_as_the_model_writes_them(model: Model, name: str, call: str) -> None:
    """GLM 4.6 writes them, 4.7 does not, nor do others that took over its format."""
    inner = call.removeprefix("<tool_calls>\n").removesuffix("\n</tool_calls>")
    syntax = Function("f", {"properties": {"a": {}}}, syntax="regex", definition="[a-z]*")
    for function in (F, syntax):
        rules = CallRules([function], name, ThoughtRules("", model.special), required=True)
        for text in (call, call.replace(inner, inner * 2), call.replace(inner, f"{inner}\n{inner}")):
            assert model.takes(rules, text), text
            calls = split(rules, text).calls
            assert json.loads(calls[0].arguments) == {"a": "x"}
            assert len(calls) == text.count("<tool_call>")
    assert not model.takes(rules, call.replace("</arg_key>", "</arg_key>\n\n"))


@pytest.mark.parametrize("key", ["a&b", 'say "a"', "&quot;", "$key", "$key|e", "$text", "$type"])
def test_an_argument_s_name_is_written_as_the_format_writes_it(model: Model, key: str) -> None:
    function = Function("f", {"properties": {key: {"type": "string", "enum": ["x"]}}, "required": [key]})
    for name, entry in CALLS.items():
        if entry.syntax != ELEMENTS or ('"' in key and '"$key"' in entry.argument):
            continue
        rules = CallRules([function], name, ThoughtRules(thoughts_of(name, ""), model.special), True, True)
        text = next(text for seed in range(SEEDS) if (text := walk(model, rules, seed)) is not None)
        assert [json.loads(each.arguments) for each in split(rules, text).calls] == [{key: "x"}], text


def test_rules_are_read_as_they_were_written() -> None:
    rules = CallRules(
        [F, Function("g", None, True)], "glm", ThoughtRules("think", {"é": 3}, True), True, True
    )
    assert CallRules.read(rules.write()) == rules
    alone = rules.alone(replace(F, loose=True))
    assert CallRules.read(alone.write()).functions == [replace(F, loose=True)]
