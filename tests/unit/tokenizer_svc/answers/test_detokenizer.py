import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_svc.answers.detokenizer import Detokenizer
from tokenizer_svc.model.token_bytes import TokenBytes
from tokenizer_svc.model.tokenizer import TextModel

TEXT = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(
    ["the lazy café 😀😀 東京", "é", "  a  b"]
)
PROPERTY = settings(max_examples=150)


def streamed(model: TextModel, prompt: list[int], tokens: list[int], table: TokenBytes | None = None) -> str:
    """The text, token by token."""
    detokenizer = Detokenizer(model.every_token if table is None else table, prompt)
    return "".join(detokenizer.add((token,)) for token in tokens) + detokenizer.finish()


@PROPERTY
@given(text=TEXT)
def test_byte_level_text_comes_back_exactly(byte_level: TextModel, text: str) -> None:
    tokens = byte_level.encode(text, special=True)
    assert streamed(byte_level, tokens[:1], tokens[1:]) == text


@PROPERTY
@given(data=st.data())
def test_byte_level_random_tokens_equal_the_full_decode(byte_level: TextModel, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=30)
    tokens, skip = data.draw(ids), data.draw(st.booleans())
    table = byte_level.plain_tokens if skip else byte_level.every_token
    whole = byte_level.tokenizer.decode(tokens, skip_special_tokens=skip)
    assert streamed(byte_level, [0], tokens, table) == whole


@PROPERTY
@given(text=TEXT, cuts=st.lists(st.integers(0, 60), max_size=5))
def test_chunks_and_tokens_give_the_same(shipped: TextModel, text: str, cuts: list[int]) -> None:
    tokens = shipped.encode(text, special=False)
    detokenizer = Detokenizer(shipped.every_token, [0])
    bounds = [0, *sorted(cuts), len(tokens)]
    chunks = [tokens[a:b] for a, b in itertools.pairwise(bounds)]
    assert "".join(map(detokenizer.add, chunks)) + detokenizer.finish() == text
    assert streamed(shipped, [0], tokens) == text == shipped.tokenizer.decode(tokens)


@PROPERTY
@given(text=TEXT)
def test_sentencepiece_equals_the_full_decode(sentencepiece: TextModel, text: str) -> None:
    """As the library decodes the whole; a prompt with its answer reads as the whole, wherever it is cut."""
    table = sentencepiece.plain_tokens
    tokens = sentencepiece.encode("x" + text, special=True)
    whole = sentencepiece.tokenizer.decode(tokens)
    assert streamed(sentencepiece, [1], tokens, table) == whole
    for cut in range(2, len(tokens)):
        head = streamed(sentencepiece, [1], tokens[1:cut], table)
        if not head.endswith("�"):
            assert head + streamed(sentencepiece, tokens[:cut], tokens[cut:], table) == whole


def test_a_space_is_not_the_first_after_a_prompt_that_ends_without_text(sentencepiece: TextModel) -> None:
    """However many tokens without text there are: the prompt had some before."""
    tokens = sentencepiece.encode("x" + "0" * 40 + " ", special=True)
    table = sentencepiece.plain_tokens
    assert streamed(sentencepiece, tokens[:-1], tokens[-1:], table) == " "


def test_no_half_characters(byte_level: TextModel) -> None:
    text = "a😀b"
    tokens = [token for byte in text.encode() for token in [one_byte(byte_level, byte)]]
    detokenizer = Detokenizer(byte_level.every_token, [0])
    assert [detokenizer.add((token,)) for token in tokens] == ["a", "", "", "", "😀", "b"]
    assert detokenizer.finish() == ""


def test_what_stays_incomplete_is_a_replacement_character(byte_level: TextModel) -> None:
    tokens = [one_byte(byte_level, byte) for byte in "😀".encode()[:3]]
    detokenizer = Detokenizer(byte_level.every_token, [0])
    assert detokenizer.add(tokens) == ""
    assert detokenizer.finish() == "�"


def test_bytes_that_are_no_text_do_not_pile_up(byte_level: TextModel) -> None:
    """A model that talks nonsense must not make each token dearer than the one before."""
    token = one_byte(byte_level, 0x80)
    detokenizer = Detokenizer(byte_level.every_token, [0])
    assert [detokenizer.add((token,)) for _ in range(100)] == ["�"] * 100


def test_a_character_begun_by_the_prompt_belongs_to_the_output(byte_level: TextModel) -> None:
    first, second = (one_byte(byte_level, byte) for byte in "é".encode())
    assert streamed(byte_level, [0, one_byte(byte_level, 0x61), first], [second]) == "é"


def test_a_token_that_the_tokenizer_does_not_know_has_no_text(byte_level: TextModel) -> None:
    assert streamed(byte_level, [0], [10_000, one_byte(byte_level, 0x61), 2_000_000]) == "a"


def test_special_tokens_are_skipped_or_not(byte_level: TextModel) -> None:
    tokens = byte_level.encode("<s>a<think></s>b<｜tool▁call｜>", special=False)
    assert streamed(byte_level, [0], tokens, byte_level.plain_tokens) == "a<think>b<｜tool▁call｜>"
    assert streamed(byte_level, [0], tokens) == "<s>a<think></s>b<｜tool▁call｜>"


def test_an_answer_keeps_its_first_space_after_a_prompt(sentencepiece: TextModel) -> None:
    tokens = sentencepiece.encode("one two", special=False)
    prompt = sentencepiece.encode("three", special=True)
    assert streamed(sentencepiece, prompt, tokens, sentencepiece.plain_tokens) == " one two"
    assert streamed(sentencepiece, prompt[:1], tokens, sentencepiece.plain_tokens) == "one two"


def test_each_token_is_looked_up_once(byte_level: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work per token does not grow with the text."""
    looked_up: list[int] = []

    class Counting(TokenBytes):
        def __getitem__(self, token: int) -> bytes:
            looked_up.append(token)
            return super().__getitem__(token)

    table = Counting(byte_level.tokenizer, {"type": "ByteLevel"}, ())
    detokenizer = Detokenizer(table, [0])
    tokens = byte_level.encode("the lazy dog " * 50, special=False)
    looked_up.clear()
    for token in tokens:
        before = len(looked_up)
        detokenizer.add((token,))
        assert len(looked_up) == before + 1
        assert len(detokenizer._decoder.getstate()[0]) < 4


def one_byte(model: TextModel, byte: int) -> int:
    return next(token for token in range(model.vocab_size) if model.every_token[token] == bytes([byte]))
