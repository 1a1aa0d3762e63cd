"""What is refused at the door."""

import re
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.limits import length_limit
from scheduler_svc.core.request import SoFar


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "limit"),
    [(1, 0, 20), (19, 0, 20), (19, 1, 20), (4, 16, 20), (4, 17, 20), (4, 2**32 - 1, 20), (4, 3, 7)],
)
def test_what_fits(fake: SimpleNamespace, prompt: int, max_tokens: int, limit: int) -> None:
    limits = fake.limits(num_blocks=5, block_size=4, max_model_len=100)
    assert length_limit(fake.request([1] * prompt, max_tokens=max_tokens), limits) == limit


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": [1] * 20}),
        ("prompt", {"prompt": [1] * 500}),
        ("prompt", {"prompt": [1] * 20, "max_tokens": 1}),
        ("prompt", {"prompt": [1, 40]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": [1], "resumed": (SoFar(0, array("i", [99]), False),)}),
        ("prompt", {"prompt": [1] * 20, "resumed": (SoFar(0, array("i"), False),)}),
    ],
)
@pytest.mark.parametrize("bound", [{"num_blocks": 5}, {"max_model_len": 20}])
def test_what_can_never_fit(
    fake: SimpleNamespace, param: str, fields: dict[str, Any], bound: dict[str, int]
) -> None:
    limits = fake.limits(**{"num_blocks": 25, "block_size": 4, "max_model_len": 100, **bound})
    with pytest.raises(RequestRefused) as error:
        length_limit(fake.request(**fields), limits)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("prompt", "known", "max_tokens", "limit"),
    [(1, 19, 0, 20), (1, 19, 50, 20), (1, 20, 0, 22), (1, 20, 50, 22), (1, 20, 20, 21), (20, 5, 50, 26)],
)
def test_what_a_larger_worker_has_begun_is_not_refused(
    fake: SimpleNamespace, prompt: int, known: int, max_tokens: int, limit: int
) -> None:
    limits = fake.limits(num_blocks=5, block_size=4, max_model_len=100)
    resumed = (SoFar(0, array("i", [1] * known), False),)
    assert length_limit(fake.request([1] * prompt, max_tokens=max_tokens, resumed=resumed), limits) == limit


@pytest.mark.parametrize("token", [32, 40, 2**31 - 1, -1])
def test_a_token_that_the_model_does_not_have_is_named(fake: SimpleNamespace, token: int) -> None:
    """A text may spell one, as `<image_soft_token>` of Gemma 3: who wrote the text has seen no token ids."""
    with pytest.raises(RequestRefused, match=f"token id {token} is not one of the model's, 0 to 31"):
        length_limit(fake.request([1, token, 99]), fake.limits(vocab_size=32))


@pytest.mark.parametrize(
    "pattern",
    [
        r"your input exceeds the context window of this model",  # GitHub's Copilot
        r"exceeds the context window",  # LangChain, in a stream of responses
        r"prompt is too long",  # LangChain, of other answers
        r"^prompt is too long[^0-9]*43\s*tokens?\s*>\s*42",  # Claude Code
        r"43\s*tokens?\s*>\s*42",  # Qwen Code
        r"this model's maximum context length is",  # LiteLLM
        r"maximum context length is 42 tokens",  # opencode, Kilo Code, Pi
    ],
)
def test_agents_recognize_a_prompt_that_is_too_long(fake: SimpleNamespace, pattern: str) -> None:
    with pytest.raises(RequestRefused) as error:
        length_limit(fake.request([1] * 42), fake.limits(max_model_len=42))
    assert re.search(pattern, str(error.value), re.IGNORECASE)


@pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_slots", "max_model_len", "vocab_size"])
def test_a_worker_must_have_something_to_offer(fake: SimpleNamespace, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        fake.limits(**{name: 0})


@pytest.mark.parametrize(("beams", "limit"), [(0, 96), (2, 44), (4, 20)])
def test_all_beams_must_fit_at_once(fake: SimpleNamespace, beams: int, limit: int) -> None:
    limits = fake.limits(num_blocks=24, block_size=4, max_model_len=100, max_slots=4)
    assert length_limit(fake.request([1] * 4, beams=beams), limits) == limit
    for prompt, max_tokens in (([1] * 4, limit - 3), ([1] * (limit - 1), 1)):
        assert length_limit(fake.request(prompt, beams=beams, max_tokens=max_tokens), limits) == limit
    with pytest.raises(RequestRefused):
        length_limit(fake.request([1] * limit, beams=beams, max_tokens=1), limits)


@pytest.mark.parametrize("fields", [{"beams": 5}, {"beams": 4, "stop_token_ids": frozenset(range(37))}])
def test_what_is_too_wide(fake: SimpleNamespace, fields: dict[str, Any]) -> None:
    limits = fake.limits(num_blocks=24, block_size=4, max_model_len=100, max_slots=4)
    with pytest.raises(RequestRefused) as refusal:
        length_limit(fake.request([1] * 4, **fields), limits)
    assert refusal.value.param == "beam_width"


@pytest.mark.parametrize("name", ["num_blocks", "host_blocks", "max_slots"])
def test_a_worker_cannot_offer_more_than_a_scheduler_can_keep_books_of(
    fake: SimpleNamespace, name: str
) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at most"):
        fake.limits(**{name: 2**32 - 1})
