"""Where a grammar leaves no choice, a text that is spelled like a special token is a text like any other."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from ops.model_directory import grammars
from ops.model_directory.grammars import GrammarError, Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from ops.model_directory.special_tokens import UNWRITTEN, is_special, unwritten

END = 200
PIECES = ["<unk>", "<s>", "<t", ">", "</s>", "a", "b", "<t>", *(f"<0x{byte:02X}>" for byte in range(256))]
DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def added(number: int, content: str, special: bool = True) -> dict[str, Any]:
    same = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": special, **same}


def of_pieces(model: dict[str, Any]) -> str:
    """A tokenizer.json like Llama 2's: the model's own vocabulary has special tokens, and merges to them."""
    tokens = [added(0, "<unk>"), added(1, "<s>"), added(4, "</s>"), added(7, "<t>", special=False)]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens}
    content |= {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": DECODER}
    return json.dumps(content | {"model": model})


NUMBERED = {each: number for number, each in enumerate(PIECES)}
BPE = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": NUMBERED}
SOURCES = {
    "shipped": (SHIPPED_MODEL / "tokenizer.json").read_text(),
    "pairs": of_pieces(BPE | {"merges": [["<t", ">"]]}),
    "texts": of_pieces(BPE | {"merges": ["<t >"]}),
    "unigram": of_pieces(
        {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[each, -1.0] for each in PIECES]}
    ),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return SOURCES[request.param]


@pytest.fixture
def vocabulary(source: str, tmp_path: Path) -> Vocabulary:
    (tmp_path / "tokenizer.json").write_text(source)
    return Vocabulary(tmp_path, 4096, [END])


def test_each_is_a_text_where_a_text_is_all_that_may_come(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.special) >= 4
    for name, number in vocabulary.special.items():
        matcher = vocabulary.matcher(LLMatcher.grammar_from_regex(f"a{re.escape(name)}b"))
        assert number not in matcher.compute_ff_tokens()
        vocabulary.walk(matcher)
        assert matcher.is_accepting()


def test_a_grammar_names_it_by_its_number(vocabulary: Vocabulary) -> None:
    for number in vocabulary.special.values():
        matcher = vocabulary.matcher(LLMatcher.grammar_from_lark(f'start: <[{number}]> "a"'))
        assert matcher.compute_ff_tokens()[0] == number
        vocabulary.walk(matcher)
        assert matcher.is_accepting()


def test_all_tokens_keep_their_numbers(source: str) -> None:
    changed, special = unwritten(json.loads(source))
    before, after = (Tokenizer.from_str(each).get_vocab() for each in (source, changed))
    assert after == {UNWRITTEN * (name in special) + name: number for name, number in before.items()}
    assert special == {name: before[name] for name in special}


@pytest.mark.parametrize(
    ("content", "flagged", "special"),
    [("<tool_call>", False, True), ("[TOOL]", True, True), ("[TOOL]", False, False), ("<a", False, False)],
)
def test_which_are_special(content: str, flagged: bool, special: bool, tmp_path: Path) -> None:
    """As the library has it: a text is this token, or no text is."""
    source = json.loads(SOURCES["shipped"])
    source["added_tokens"].append(added(4096, content, flagged))
    (tmp_path / "tokenizer.json").write_text(json.dumps(source))
    vocabulary = Vocabulary(tmp_path, 4097, [END])
    assert is_special(content, flagged) is special is (content in vocabulary.special)
    matcher = vocabulary.matcher(LLMatcher.grammar_from_regex("(?s:.*)"))
    assert matcher.try_consume_tokens([4096]) == (not special)


def test_a_vocabulary_with_fewer_rows_than_tokens_is_read_once(source: str, tmp_path: Path) -> None:
    content = json.loads(source)
    rows = max(Tokenizer.from_str(source).get_vocab().values()) + 1
    content["added_tokens"].append(added(rows, "<image>"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with patch.object(grammars, "LLTokenizer", wraps=LLTokenizer) as read:
        vocabulary = Vocabulary(tmp_path, rows, [END])
    assert read.call_count == 1
    assert "<image>" not in vocabulary.special
    matcher = vocabulary.matcher(LLMatcher.grammar_from_regex("a<image>b"))
    assert rows not in matcher.compute_ff_tokens()
    vocabulary.walk(matcher)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    "source", ["{}", "[]", '{"model": 7}', '{"model": {"vocab": {}}, "added_tokens": [1]}']
)
def test_what_is_no_tokenizer_is_told(source: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(source)
    with pytest.raises(GrammarError, match="takes no grammars"):
        Vocabulary(tmp_path, 4096, [END])


@pytest.mark.parametrize("rows", [0, 300, 512])
def test_numbers_that_no_token_has(tmp_path: Path, rows: int) -> None:
    """As in o200k: the end token's number is higher than the count of tokens."""
    end = len(PIECES) + 20
    content = json.loads(SOURCES["pairs"])
    content["model"]["vocab"] = NUMBERED | {"<end>": end, "<last>": end + 1}
    content["added_tokens"] += [added(end, "<end>"), added(end + 1, "<last>")]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    vocabulary = Vocabulary(tmp_path, rows, [end])
    matcher = vocabulary.matcher(LLMatcher.grammar_from_lark(f'start: "a" <[{end + 1}]> /(?s:.*)/'))
    assert matcher.consume_tokens([PIECES.index("a"), end + 1])
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    assert [allowed >> number & 1 for number in range(len(PIECES), end + 2)] == [*[0] * 20, 1, 0]
    assert matcher.consume_token(end)
