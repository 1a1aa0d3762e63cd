"""The characters of a token: a bound that holds, or none."""

import copy
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.model.longest import characters_per_token

SHIPPED = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
LONGEST = max(map(len, [*SHIPPED["model"]["vocab"], *(one["content"] for one in SHIPPED["added_tokens"])]))


def changed(**parts):
    return copy.deepcopy(SHIPPED) | parts


def test_the_shipped_model():
    assert characters_per_token(SHIPPED) == LONGEST


NFC = {"type": "NFC"}
COLLAPSES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
ISOLATED = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("parts", "factor"),
    [
        ({"normalizer": NFC}, 4),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, NFC]}}, 4),
        ({"normalizer": {"type": "Prepend", "prepend": "▁"}}, 1),
        ({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}, 1),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": "▁"}}, None),
        ({"normalizer": COLLAPSES}, None),
        ({"normalizer": {"type": "Sequence", "normalizers": [NFC, {"type": "Strip"}]}}, None),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, None),
        ({"pre_tokenizer": {"type": "Whitespace"}}, None),
        ({"pre_tokenizer": ISOLATED | {"behavior": "Removed"}}, None),
        ({"pre_tokenizer": ISOLATED}, None),  # no bytes any more: what is not in the vocabulary is lost
        ({"pre_tokenizer": None}, None),
        ({"model": SHIPPED["model"] | {"type": "Unigram"}}, None),
        ({"model": SHIPPED["model"] | {"vocab": {"a": 0}}}, None),
        ({"model": None}, None),
        ({"added_tokens": [*SHIPPED["added_tokens"], {"content": "<mask>", "lstrip": True}]}, None),
        ({"added_tokens": [{"content": "x" * 500}]}, 500 / LONGEST),
    ],
)
def test_what_keeps_all_characters(parts, factor):
    found = characters_per_token(changed(**parts))
    assert found == (None if factor is None else round(factor * LONGEST))


def test_byte_fallback():
    vocabulary = {"▁": 0, "ab": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    model = {"type": "BPE", "vocab": vocabulary, "byte_fallback": True}
    assert characters_per_token({"model": model, "pre_tokenizer": {"type": "Metaspace"}}) == 6
    del vocabulary["<0x00>"]
    assert characters_per_token({"model": model}) is None


def test_composition_makes_one_character_of_four_at_most():
    assert max(len(unicodedata.normalize("NFD", chr(code))) for code in range(0x110000)) == 4


COMPOSING = Tokenizer.from_str(json.dumps(changed(normalizer=NFC)))
BOUND = characters_per_token(changed(normalizer=NFC))


@given(st.text(max_size=200) | st.text(st.sampled_from("α\u0314\u0301\u0345 e\u0301가ᄀ"), max_size=200))
def test_no_text_is_longer_than_its_tokens_allow(text):
    for tokenizer, bound in ((COMPOSING, BOUND), (PLAIN, LONGEST)):
        assert len(text) <= bound * len(tokenizer.encode(text, add_special_tokens=False).ids)


PLAIN = Tokenizer.from_str(json.dumps(SHIPPED))
