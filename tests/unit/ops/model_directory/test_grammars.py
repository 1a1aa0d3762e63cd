"""The vocabulary as grammars see it: which tokens may come next does not depend on how they are found."""

import contextlib
import json
import random
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from tokenizers import Tokenizer

from ops.model_directory import grammars
from ops.model_directory.grammars import GrammarError, LimitError, Vocabulary, rolls_back
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_text import grammar_text

END = 4
STRING = {"type": "string"}
SCHEMAS = (
    {"type": "object", "properties": {"a": STRING, "b": STRING | {"maxLength": 24}}, "required": ["a", "b"]},
    {"type": "array", "items": STRING | {"minLength": 2, "maxLength": 9}, "minItems": 3},
    {"type": "string", "pattern": "^[a-z]{1,4}( [a-z]+)*$"},
)


@pytest.fixture(scope="module")
def whole() -> Vocabulary:
    with patch.object(grammars, "SLICES", []):
        return Vocabulary(SHIPPED_MODEL, 4096, [END])


@pytest.mark.parametrize("schema", SCHEMAS)
def test_parts_of_the_vocabulary_change_no_mask(whole: Vocabulary, schema: object) -> None:
    text = grammar_text("json_schema", json.dumps(schema))
    vocabulary, drawn = Vocabulary(SHIPPED_MODEL, 4096, [END]), random.Random(7)
    for _ in range(3):
        matchers = vocabulary.matcher(text), whole.matcher(text)
        for _ in range(60):
            if matchers[0].is_stopped():
                break
            masks = [np.frombuffer(matcher.compute_bitmask(), np.uint8) for matcher in matchers]
            assert (masks[0] == masks[1]).all()
            allowed = np.flatnonzero(np.unpackbits(masks[0], bitorder="little"))
            token = int(drawn.choice(allowed))
            assert all(matcher.consume_token(token) for matcher in matchers)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start: "a" start', "Too many items"),
        ('start: "x"{9} (a b)\na: "y" a\nb: "z"', "Too many items"),
        ("start: A\nA: /a/ & /b/", "no text follows it"),
        ("start: " + " | ".join(f'"{number}"' for number in range(3000)), "row has 3001 items; max is 2000"),
        # Behind a text that leaves no choice.
        (f'start: "{"quick brown foxes " * 20}" "?" rest\nrest: "a" rest', "Too many items"),
    ],
)
def test_a_walk_meets_what_the_first_mask_does_not(grammar: str, said: str) -> None:
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    with pytest.raises(GrammarError, match=said):
        vocabulary.walk(vocabulary.matcher(grammar))


def test_following_an_ambiguous_grammar_takes_bounded_time() -> None:
    """Without the limit of items in a row, the 54th token takes half a second."""
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    repeated = "\n".join(f"{rule}: {of}{{0,99}}" for rule, of in ("ab", "bc", "cd"))
    matcher = vocabulary.matcher(f'start: a{{0,99}}\n{repeated}\nd: "x"')
    begun = time.process_time()
    with pytest.raises(GrammarError, match="max is 2000"):
        vocabulary.walk(matcher)
    assert time.process_time() - begun < 1


def test_a_walk_ends_where_an_answer_must() -> None:
    vocabulary = Vocabulary(SHIPPED_MODEL, 4096, [END])
    matcher = vocabulary.matcher('start: "yes" | "no"')
    vocabulary.walk(matcher)
    assert matcher.is_accepting()


def test_a_vocabulary_without_an_end_token_is_refused() -> None:
    with pytest.raises(GrammarError, match="no end token"):
        Vocabulary(SHIPPED_MODEL, 4096, [])


def test_a_token_without_a_row_of_logits_cannot_follow(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|one|>", "<|two|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    small, large = (Vocabulary(tmp_path, size, [END]) for size in (4097, 4098))
    assert large.special.keys() - small.special.keys() == {"<|two|>"}
    texts = [("<[4097]>", False), ('"a" <[4097]>', False), ('<[4097]> | "a"', True), ("<[4096]>", True)]
    for text, follows in texts:
        large.walk(large.matcher(f"start: {text}"))
        with contextlib.nullcontext() if follows else pytest.raises(LimitError, match="no text follows"):
            small.walk(small.matcher(f"start: {text}"))


def test_a_text_is_not_spelled_with_a_token_that_has_no_row_of_logits(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
    tokenizer.add_tokens(["[one]", "[two]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for size, spelled in ((4097, [4096]), (4098, [4096, 4097])):
        vocabulary = Vocabulary(tmp_path, size, [END])
        matcher = vocabulary.matcher('start: "a[one][two]b"')
        assert [token for token in matcher.compute_ff_tokens() if token >= 4096] == spelled
        vocabulary.walk(matcher)
        assert matcher.is_accepting()
        assert not vocabulary.special.keys() & {"[one]", "[two]"}


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("start: x\nx: /[a-z]*/", True),
        ('start: x\nx[suffix="e"]: /[a-z]*/', True),
        ('start: "a" x\nx[stop="e"]: /[a-z]*/', False),
        ('start: "a" x\nx[max_tokens=3]: /[a-z]*/', False),
        ("start: A\nA: ", True),
    ],
)
def test_which_grammars_let_tokens_be_taken_back(grammar: str, expected: bool) -> None:
    matcher = Vocabulary(SHIPPED_MODEL, 4096, [END]).matcher(grammar)
    assert rolls_back(matcher) is expected
    assert not matcher.is_error()
