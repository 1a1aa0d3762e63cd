"""Merges that follow from a vocabulary, and their bound."""

import pytest

from ops.model_directory.tokenizer_json import check_lengths, merges_of


def test_merges_follow_scores() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "aba": 3, "ba": 4}
    scores = [0.0, 0.0, -3.0, -1.0, -2.0]
    assert merges_of(vocabulary, scores) == [["a", "ba"], ["ab", "a"], ["b", "a"], ["a", "b"]]


def test_tokens_whose_merges_would_fill_the_memory() -> None:
    """A file of half a megabyte would have half a million merges of 500 characters each."""
    check_lengths(["a" * length for length in range(1, 501)])
    check_lengths(["word" + str(number) for number in range(300_000)])
    with pytest.raises(ValueError, match="1024 tokens with 524800 characters have too many merges"):
        check_lengths(["a" * length for length in range(1, 1025)])
