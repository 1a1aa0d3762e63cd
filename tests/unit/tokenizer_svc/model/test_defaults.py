"""What generation_config.json says, and what of it reaches the scheduler."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from proto.sampling_pb2 import SamplingParams
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import ModelDirectoryError
from tokenizer_svc.model.defaults import fill_in, read_defaults

PATH = Path("generation_config.json")
ALL = ["max_tokens", "min_p", "repetition_penalty", "temperature", "top_k", "top_p"]


def asked(**stated: Any) -> TextRequest:
    """A request that states so much, with the rest as the gateway fills it in."""
    fields = {"temperature": 1, "top_p": 1, "repetition_penalty": 1, **stated}
    return TextRequest(
        sampling=SamplingParams(seed=7, presence_penalty=0.5, **fields),
        left_out=[name for name in ALL if name not in stated],
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 4, "temperature": None, "top_p": None}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        ({"top_k": 20, "min_p": 0.1}, {"top_k": 20, "min_p": 0.1}),
        ({"do_sample": False}, {"temperature": 0}),
        ({"do_sample": False, "temperature": 0.6, "top_k": 50}, {"temperature": 0}),
        (
            {"do_sample": False, "repetition_penalty": 1.1, "max_new_tokens": 9},
            {"temperature": 0, "repetition_penalty": 1.1, "max_tokens": 9},
        ),
    ],
)
def test_what_the_keys_mean(values: dict[str, Any], expected: dict[str, float]) -> None:
    assert read_defaults(PATH, values) == expected


def test_the_values_are_those_that_transformers_reads(tmp_path: Path) -> None:
    values = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
        "max_new_tokens": 77,
    }
    (tmp_path / PATH).write_text(json.dumps(values))
    theirs = GenerationConfig.from_pretrained(tmp_path)
    request = asked()
    fill_in(request, read_defaults(tmp_path / PATH, values))
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        assert getattr(request.sampling, name) == pytest.approx(getattr(theirs, name)), name
    assert request.max_tokens == theirs.max_new_tokens


@pytest.mark.parametrize("name", [name for name in ALL if name != "max_tokens"])
def test_a_field_that_is_stated_wins(name: str) -> None:
    defaults = {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5, "repetition_penalty": 2}
    before, request = asked(**{name: 1}), asked(**{name: 1})
    fill_in(request, defaults)
    for other, value in defaults.items():
        expected = getattr(before.sampling, name) if other == name else value
        assert getattr(request.sampling, other) == expected, other
    assert (request.sampling.seed, request.sampling.presence_penalty) == (7, 0.5)
    again = TextRequest.FromString(request.SerializeToString())
    fill_in(again, defaults)
    assert again == request, "a request that is taken up again is the same"


def test_a_length_that_is_not_the_model_s() -> None:
    request = asked()
    fill_in(request, {"temperature": 0})
    assert not request.HasField("max_tokens")
    request.max_tokens = 16
    fill_in(request, {"temperature": 0})
    assert request.max_tokens == 16


@pytest.mark.parametrize(
    ("given", "default", "most", "length"),
    [
        (None, None, 100, 100),
        (None, 2000, 100, 100),
        (None, 50, 100, 50),
        (16, 2000, 100, 100),
        (16, None, 100, 16),
        (16, None, 10, 10),
        (None, None, 0, 0),
        (16, 2000, 0, 2000),
    ],
)
def test_no_length_is_above_the_limit(given: int | None, default: int | None, most: int, length: int) -> None:
    request = TextRequest(max_tokens=given, most_tokens=most, left_out=["max_tokens"])
    fill_in(request, {} if default is None else {"max_tokens": default})
    assert request.max_tokens == length
    assert list(request.left_out) == ["max_tokens"]


def test_a_limit_is_for_answers_of_any_length_too() -> None:
    request = TextRequest(most_tokens=100, rolling_context=True)
    fill_in(request, {})
    assert (request.max_tokens, list(request.left_out)) == (100, [])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": "0.7"},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_p": True},
        {"top_k": 2.5},
        {"top_k": -5},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"max_new_tokens": 0},
        {"max_new_tokens": [3]},
        {"do_sample": "yes"},
    ],
)
def test_a_value_that_cannot_be_is_named(values: dict[str, Any]) -> None:
    (key,) = values
    with pytest.raises(ModelDirectoryError, match=rf"generation_config\.json: {key}: .* is not"):
        read_defaults(PATH, values)


def test_what_is_not_honoured_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    neutral = {"epsilon_cutoff": 0.0, "num_beams": 1, "no_repeat_ngram_size": 0, "bad_words_ids": None}
    harmless = {"bos_token_id": 1, "transformers_version": "5", "output_scores": True, "use_cache": False}
    with caplog.at_level(logging.WARNING):
        read_defaults(PATH, {**neutral, **harmless, "temperature": 0.6})
        assert not caplog.records
        read_defaults(
            PATH, {**neutral, "suppress_tokens": [1, 2], "bad_words_ids": [[3]], "epsilon_cutoff": 0.1}
        )
    (record,) = caplog.records
    assert record.getMessage() == (
        "generation_config.json: not honoured: bad_words_ids, epsilon_cutoff, suppress_tokens"
    )
