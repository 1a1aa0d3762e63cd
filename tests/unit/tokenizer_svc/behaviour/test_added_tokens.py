"""Marks of many models are added tokens that are not special, as Qwen's `<tool_call>`: grammars have them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from ops.model_directory.grammars import Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tests.unit.tokenizer_svc.conftest import save
from tokenizer_svc.formats.formats import Formats
from tokenizer_svc.grammars.call_rules import CallRules, Function
from tokenizer_svc.grammars.grammar_main import tried
from tokenizer_svc.model.tokenizer import TextModel

END = 4
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
THOUGHT = "<think>\nWell.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class Model:
    """Its directory is like that of a model of Qwen's."""

    def __init__(self, directory: Path) -> None:
        tokenizer = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
        tokenizer.add_tokens([AddedToken(mark, special=False) for mark in MARKS])
        text = save(tokenizer, directory, generation_config={"eos_token_id": END})
        self.text: TextModel = replace(text, template='<tool_call>\n{"name": }</tool_call><think></think>')
        self.formats = Formats(self.text)
        self.vocabulary = Vocabulary(directory, tokenizer.get_vocab_size(), [END])

    def takes(self, answer: str, kind: str, text: str, before: dict[str, Any] | None = None) -> bool:
        """Whether the tokens of an answer follow the grammar that is made of this."""
        matcher = self.vocabulary.matcher(tried(self.vocabulary, kind, text, False, before)["text"])
        tokens = self.text.encode(answer, special=False)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def rules(self, **how: Any) -> str:
        function = Function("f", {"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True)
        return CallRules([function], self.formats.call_name, self.formats.before([7]), **how).write()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("added"))


def test_they_are_tokens_of_the_formats(model: Model) -> None:
    assert (model.formats.call_name, model.formats.thought_name) == ("hermes", "think")
    assert list(model.formats.marks) == MARKS


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("answer", [CALL, THOUGHT + CALL, f"{CALL}\n{CALL}"])
def test_calls(model: Model, answer: str, required: bool) -> None:
    assert model.takes(answer, "calls", model.rules(required=required))
    assert not model.takes(answer.replace("1", '"1"'), "calls", model.rules(required=required))


def test_a_thought_before_a_schema(model: Model) -> None:
    before, schema = vars(model.formats.before([7])), '{"type": "integer"}'
    assert model.takes(f"{THOUGHT}12", "json_schema", schema, before)
    assert not model.takes(f"{THOUGHT}x", "json_schema", schema, before)
    begun = vars(model.formats.before(model.text.encode("<think>\n", special=False)))
    assert model.takes("Well.\n</think>\n\n12", "json_schema", schema, begun)


def test_tokens_that_a_client_names(model: Model) -> None:
    first, last = (model.vocabulary.special[mark] for mark in MARKS[:2])
    found = tried(model.vocabulary, "grammar", 'start: <tool_call> "<tool_call>" </tool_call>', False)
    forced = model.vocabulary.matcher(found["text"]).compute_ff_tokens()
    assert (forced[0], forced[-1]) == (first, last)
    assert not set(forced[1:-1]) & {first, last}
    assert model.text.tokenizer.decode(forced) == "<tool_call><tool_call></tool_call>"
    wrong = tried(model.vocabulary, "grammar", 'start: <|tool_call|> "a"', False)
    assert "no special token <|tool_call|>" in wrong["error"]
