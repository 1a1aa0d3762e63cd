"""Which tokens fill in the middle."""

import time

import pytest

from tokenizer_svc.model.infilling import Infilling

QWEN = (
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
CODESTRAL = ("</s>", "[PREFIX]", "[SUFFIX]")


def found(names, rows=100, special=()):
    return Infilling.find({name: number for number, name in enumerate(names)}, special, rows)


def test_prefix_suffix_middle():
    layout = found(QWEN)
    assert (layout.before, layout.after, layout.middle, layout.after_first) == (1, 3, 2, False)
    assert (layout.repository, layout.file, layout.ends) == (4, 5, {0, 1, 2, 3, 4, 5})


def test_what_stands_after_the_gap_comes_first():
    layout = found(CODESTRAL)
    assert (layout.before, layout.after, layout.middle, layout.after_first) == (1, 2, None, True)
    assert (layout.repository, layout.file, layout.ends) == (None, None, {1, 2})


@pytest.mark.parametrize(
    "names", [(), ("a", "<|fim_prefix|>", "<|fim_suffix|>"), ("[PREFIX]", "<fim_suffix>")]
)
def test_a_vocabulary_without_all_of_them(names):
    assert found(names) is None


def test_tokens_without_a_row_do_not_count():
    assert found(QWEN, rows=4).file is None
    assert found(QWEN, rows=3) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("a < b", ["a < b"]),
        ("<|fim_prefix|", ["<|fim_prefix|"]),
        ("a<|fim_prefix|>b", ["a<", "|fim_prefix|>b"]),
        ("<|fim_prefix|><s><|file_sep|>", ["<", "|fim_prefix|><", "s><", "|file_sep|>"]),
        ("aaab\nab", ["aa", "a", "b\na", "b"]),
    ],
)
def test_parts_that_spell_no_token(text, parts):
    layout = found(QWEN, special=["<s>", "ab", "aab", "x"])
    assert layout.parts(text) == parts
    assert not any(name in part for part in parts for name in layout.unwritten if len(name) > 1)


def test_a_thousand_tokens_take_no_longer_than_ten():
    """As Tekken's, all of which have the same beginning, in a text full of it."""
    text, seconds = "<S<SPECIAL_" * 20_000, []
    for count in (10, 1000):
        layout = found(CODESTRAL, special=["<s>", *(f"<SPECIAL_{number}>" for number in range(count))])
        layout.parts("")
        begun = time.thread_time()
        assert layout.parts(text) == [text]
        seconds.append(time.thread_time() - begun)
    assert seconds[1] < 20 * seconds[0]


def test_parts_of_a_text_that_spells_many_tokens():
    names = [f"<SPECIAL_{number}>" for number in range(200)] + ["<s>", "<SPECULATIVE>", "<.*>"]
    layout = found(CODESTRAL, special=names)
    for name in names:
        assert layout.parts(f"a{name}b") == ["a<", f"{name[1:]}b"]
    assert layout.parts("<PEC<.>") == ["<PEC<.>"]


def test_marks_of_sentencepiece_are_spelled_with_spaces_too():
    layout = found(("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"))
    assert layout.ends == {0, 1, 2, 3}
    for text in ("<PRE>", "a <SUF>", "▁<EOT>"):
        assert len(layout.parts(text)) > 1
