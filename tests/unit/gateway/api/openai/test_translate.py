"""What a body becomes for the tokenizer service."""

import json
from typing import Any

import pytest

from gateway.api.common.body import parse
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.translate import completion_requests
from gateway.errors import BadRequest
from gateway.http.caller import Caller
from proto.sampling_pb2 import Dry
from proto.tokenizer_pb2 import TextRequest


def translated(**fields: Any) -> TextRequest:
    body = parse(json.dumps({"model": "m", "prompt": "A", **fields}).encode(), CompletionBody)
    (request,) = completion_requests(body, "r", Caller())
    return request


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dry_base": 2, "dry_sequence_breakers": ["x"]},
        {"dry_multiplier": 1, "dry_penalty_last_n": 0},
    ],
)
def test_no_penalty_on_repetitions(fields: dict[str, Any]) -> None:
    request = translated(**fields)
    assert not request.sampling.HasField("rules")
    assert not request.dry_breakers


def test_a_penalty_on_repetitions() -> None:
    request = translated(dry_multiplier=0.5)
    expected = Dry(dry_multiplier=0.5, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=2**31 - 1)
    assert request.sampling.rules.dry == expected
    assert list(request.dry_breakers) == ["\n", ":", '"', "*"]
    fields = {"dry_base": 2, "dry_allowed_length": 0, "dry_penalty_last_n": 9, "dry_sequence_breakers": []}
    request = translated(dry_multiplier=1, logit_bias={"3": 1}, **fields)
    assert request.sampling.rules.dry == Dry(dry_multiplier=1, dry_base=2, dry_penalty_last_n=9)
    assert list(request.sampling.rules.biased_tokens) == [3]
    assert not request.dry_breakers


@pytest.mark.parametrize("text", ['["\\n", ":"]', '"\\n", ":"', ' [ "\\n",":" ] '])
def test_breakers_as_a_text(text: str) -> None:
    """As SillyTavern sends them."""
    request = translated(dry_multiplier=1, dry_sequence_breakers=text)
    assert list(request.dry_breakers) == ["\n", ":"]


@pytest.mark.parametrize("text", ["x", '{"a": 1}', "[1]", '"a" "b"', "[" * 1000, '"a",' * 33 + '"a"'])
def test_texts_that_are_no_breakers(text: str) -> None:
    with pytest.raises(BadRequest, match="dry_sequence_breakers"):
        translated(dry_multiplier=1, dry_sequence_breakers=text)


def test_no_breakers_as_a_text() -> None:
    assert not translated(dry_multiplier=1, dry_sequence_breakers="").dry_breakers


def test_stop_strings_are_many_or_long() -> None:
    assert len(translated(stop=[str(number) for number in range(64)]).stop) == 64
    assert len(translated(stop=["x" * 256] * 16).stop) == 16
    for stops in ([str(number) for number in range(65)], ["x" * 256] * 17):
        with pytest.raises(BadRequest, match="stop"):
            translated(stop=stops)


def test_a_seed_of_minus_one_is_random() -> None:
    """As with vLLM, llama.cpp and Ollama."""
    for seed in (-1, -1.0):
        seeds = {translated(seed=seed).sampling.seed for _ in range(3)}
        assert len(seeds) == 3
        assert 2**64 - 1 not in seeds


def test_how_much_of_a_prompt_is_kept() -> None:
    for asked, sent in ((None, 0), (7, 7), (-1, 2**31 - 1)):
        assert translated(truncate_prompt_tokens=asked).truncate_prompt_tokens == sent


def test_whether_the_text_has_what_ends_it() -> None:
    assert not translated().include_stop_text
    assert translated(include_stop_str_in_output=True).include_stop_text
