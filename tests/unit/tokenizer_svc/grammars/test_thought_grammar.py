"""A thought comes before what follows a grammar, and is free."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer

from ops.model_directory.grammars import Vocabulary
from tests.unit.tokenizer_svc.conftest import save
from tests.unit.tokenizer_svc.grammars.test_call_grammar import Model, model
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import Formats, ThoughtRules
from tokenizer_svc.grammars.call_grammar import call_grammar
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.grammar_text import grammar_text
from tokenizer_svc.grammars.thought_grammar import after_thought
from tokenizer_svc.model.tokenizer import TextModel

__all__ = ["model"]

TAG = {"structures": [{"begin": "<f>", "schema": {"const": 5}, "end": "</f>"}], "triggers": ["<f"]}
FORMAT = {
    "type": "tag",
    "begin": "<f>",
    "content": {"type": "json_schema", "json_schema": {"const": 5}},
    "end": "</f>",
}
SHAPES: list[tuple[str, Any, str]] = [
    ("json_schema", json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"enum": [5]}}}), "5"),
    ("regex", "[0-9]", "5"),
    ("choice", '["5", "7"]', "5"),
    ("grammar", "start: a\na: /[0-9]/\n", "5"),
    ("grammar", "root ::= [0-9]\n", "5"),
    ("structural_tag", json.dumps(TAG), "a<f>5</f>b"),
    ("structural_tag", json.dumps({"format": FORMAT}), "<f>5</f>"),
]


@pytest.mark.parametrize(("kind", "text", "answer"), SHAPES)
def test_a_thought_and_an_answer(model: Model, kind: str, text: str, answer: str) -> None:
    shape = grammar_text(kind, text)

    def takes(said: str, name: str = "think", thinking: bool = False) -> bool:
        return model.follows(after_thought(shape, ThoughtRules(name, model.special, thinking)), said)

    for thought in ("Hm.", "", "5 < 7\n", "{}"):
        assert takes(f"<think>{thought}</think>\n\n{answer}")
        assert takes(f"{thought}</think>{answer}", thinking=True)
        assert not takes(f"{thought}</think>", thinking=True) or kind == "structural_tag"
        assert not takes(f"<think>{thought}</think><f>9</f>")
        assert takes(f"<|channel>thought\n{thought}\n<channel|>{answer}", "gemma4")
        assert takes(f"{thought}<channel|>{answer}", "gemma4", thinking=True)
        assert not takes(f"<|channel>thought\n{thought}", "gemma4") or kind == "structural_tag"
        message = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
        assert takes(f"{message}{message}<|channel|>final<|message|>{answer}", "harmony")
        assert not takes(f"{message}{answer}", "harmony")
        message = f" to=self<|message|>{thought}<|eom|><|start|>assistant"
        assert takes(f"{message}{message} to=user<|message|>{answer}", "muse_glimmer")
        assert not takes(f"{message}{answer}", "muse_glimmer")
        message = f"<|content_thinking|>{thought}<|end_message|><|message_model|>"
        for end in ("", "<|end_message|>"):
            assert takes(f"{message}{message}<|content_text|>{answer}{end}", "inkling")
        assert not takes(f"{message}{answer}", "inkling")
        for begin, end in (("<answer>\n", "\n</answer>"), ("<answer>", "</answer>\n"), ("", "")):
            assert takes(f"<think>{thought}</think>\n{begin}{answer}{end}", "think_answer")
        assert takes(f"<think:any>{thought}</think:any>{answer}", "think:any")
        assert takes(f"{thought}</ifm|think_fast>{answer}", "k2_horizon_fast", thinking=True)
        thought += "<|close|>think<|sep|>"
        said = f"<|open|>response<|sep|>{answer}"
        assert takes(f"{thought}{said}", "kimi_k3", thinking=True)
        assert takes(
            f"{thought}{said}<|close|>response<|sep|><|close|>message<|sep|>", "kimi_k3", thinking=True
        )
        assert takes(f"<|open|>think<|sep|>{thought}{said}", "kimi_k3")
    assert takes(f"</mm:think>{answer}", "minimax_m3")
    assert not takes(f"</think>{answer}") or kind == "structural_tag"
    assert takes(f"all\n{answer}", "functionary32")
    assert not takes(answer, "functionary32")
    assert takes(answer, "kimi_k3"), "the prompt has the head of the response"
    assert takes(answer)
    assert not takes(answer, thinking=True)
    assert takes(f"<|channel|>final<|message|>{answer}", "harmony")
    assert not takes(answer, "harmony")


class Thinking:
    """A model whose marks of thoughts are tokens, and what may follow in its answers."""

    def __init__(self, byte_level: TextModel, directory: Path) -> None:
        tokenizer = Tokenizer.from_str(byte_level.tokenizer.to_str())
        tokenizer.add_tokens([AddedToken("</think>", special=False)])
        self.model = replace(save(tokenizer, directory), template="</think>", end_tokens=(1,))
        self.formats = Formats(self.model)
        self.vocabulary = Vocabulary(directory, self.model.vocab_size, [1])
        self.begin, self.end = self.tokens("<think></think>")

    def tokens(self, text: str) -> list[int]:
        return self.model.encode(text, special=False)

    def matcher(self, budget: int, shape: str = "", prompt: str = "") -> LLMatcher:
        before = self.formats.before(self.tokens(prompt), budget)
        return self.vocabulary.matcher(after_thought(shape, before))

    def next(self, matcher: LLMatcher) -> set[int]:
        return {token for token in range(self.model.vocab_size) if matcher.validate_tokens([token])}


@pytest.fixture
def thinking(byte_level: TextModel, tmp_path: Path) -> Thinking:
    return Thinking(byte_level, tmp_path)


@pytest.mark.parametrize("budget", [0, 1, 5, 1000])
def test_a_thought_ends_with_its_budget(thinking: Thinking, budget: int) -> None:
    words = thinking.tokens("the lazy dog")
    thought = (words * budget)[:budget]
    for prompt, begun in (("", [thinking.begin]), ("hi<think>\n", [])):
        matcher = thinking.matcher(budget, prompt=prompt)
        assert matcher.consume_tokens([*begun, *thought])
        assert thinking.next(matcher) == {thinking.end}
        # Drafts are tried and taken back.
        assert matcher.consume_tokens([thinking.end, words[0]])
        assert matcher.rollback(2 + len(thought))
        assert matcher.consume_tokens([*thought, thinking.end])
        assert matcher.is_accepting()
        assert thinking.next(matcher) == set(range(thinking.model.vocab_size)) - {
            thinking.begin,
            thinking.end,
        }


def test_a_thought_may_end_before_its_budget_and_an_answer_have_none(thinking: Thinking) -> None:
    shape = grammar_text("regex", "lazy")
    words, answer = thinking.tokens("the dog"), thinking.tokens("lazy")
    for said in (
        [thinking.begin, *words, thinking.end, *answer],
        [thinking.begin, thinking.end, *answer],
        answer,
    ):
        for text in (shape, ""):
            matcher = thinking.matcher(100, text)
            assert matcher.consume_tokens(said)
            assert matcher.is_accepting()
    matcher = thinking.matcher(100)
    assert matcher.consume_tokens(words)
    assert thinking.begin not in thinking.next(matcher), "a thought without a budget"


def test_calls_after_a_thought_with_a_budget(thinking: Thinking) -> None:
    before = thinking.formats.before([], 2)
    call = thinking.tokens('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    words = thinking.tokens("the dog")[:2]
    for required, said in ((True, []), (False, []), (False, thinking.tokens("Hm "))):
        rules = CallRules([Function("f", None, True)], "hermes", before, required=required)
        for thought in ([], [thinking.begin, *words, thinking.end]):
            matcher = thinking.vocabulary.matcher(LLMatcher.grammar_from_lark(call_grammar(rules)))
            assert matcher.consume_tokens([*thought, *said, *call])
            assert matcher.is_accepting()
        assert not thinking.vocabulary.matcher(
            LLMatcher.grammar_from_lark(call_grammar(rules))
        ).consume_tokens([thinking.begin, *words, words[0]])


def test_a_thought_that_cannot_be_counted(thinking: Thinking, byte_level: TextModel) -> None:
    for formats in (
        Formats(replace(byte_level, template="</think>")),
        Formats(thinking.model, thoughts="harmony"),
    ):
        with pytest.raises(InvalidRequestError, match="cannot be counted") as refused:
            formats.before([], 5)
        assert refused.value.param == "thinking_token_budget"
        assert formats.before([]).budget is None
        assert formats.before([], 5, lenient=True) == formats.before([])
    closed = thinking.tokens("hi<think>\n\n</think>\n\n")
    assert thinking.formats.before(closed, 5) == ThoughtRules("", thinking.formats.marks)
    assert Formats(byte_level).before(closed, 5) == ThoughtRules("", {})
