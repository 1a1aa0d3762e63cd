"""Panics of the tokenizers library: the request that has caused one fails, or the process ends."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tokenizer_svc.errors import PanicError
from tokenizer_svc.model import tokenizer
from tokenizer_svc.model.panic import no_panic
from tokenizer_svc.model.tokenizer import TextModel


class PanicException(BaseException):
    """Named as pyo3's, which cannot be imported."""


def panicking(model: TextModel, texts: str) -> TextModel:
    """The model with a library that panics over a text that contains one of `texts`."""

    def encode(batch: list[str], add_special_tokens: bool) -> Any:
        if any(each in texts for each in batch[0]):
            raise PanicException("index out of bounds")
        return model.tokenizer.encode_batch_fast(batch, add_special_tokens=add_special_tokens)

    return replace(model, tokenizer=SimpleNamespace(encode_batch_fast=encode))  # type: ignore[arg-type]


def test_a_panic_is_an_error() -> None:
    with pytest.raises(PanicError, match="out of bounds"), no_panic():
        raise PanicException("index out of bounds")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_all_else_is_as_it_was(error: type[BaseException]) -> None:
    with pytest.raises(error), no_panic():
        raise error


def test_a_text_over_which_the_library_panics_fails_alone(byte_level: TextModel) -> None:
    model = panicking(byte_level, "!")
    with pytest.raises(PanicError):
        model.encode("fox!", special=False)
    assert model.encode("fox", special=False) == byte_level.encode("fox", special=False)


def test_a_library_that_panics_over_every_text_ends_the_process(
    byte_level: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(tokenizer, "end_at_once", reasons.append)
    with pytest.raises(PanicError):
        panicking(byte_level, "!a").encode("fox!", special=False)
    assert len(reasons) == 1
    assert "fails for every text" in reasons[0]
