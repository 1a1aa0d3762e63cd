"""Beam search through all four processes, held against transformers."""

from typing import Any

import httpx
import pytest

from tests.support import oracle
from tests.support.deployment import SHIPPED_MODEL, Deployment

STORY = "Tell me a story about a fox."
FRUITS = "List five fruits."


def ask(deployment: Deployment, text: str, max_tokens: int, width: int, n: int, **options: Any) -> list[Any]:
    """The choices of a chat that is answered by a search."""
    body = {
        "model": deployment.model_name,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "use_beam_search": True,
        "beam_width": width,
        "n": n,
        "return_token_ids": True,
        **options,
    }
    answer = httpx.post(f"{deployment.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choices: list[Any] = answer.json()["choices"]
    return choices


@pytest.mark.parametrize("width", range(1, 9))
def test_the_best_answers_are_what_transformers_finds(deployment: Deployment, width: int) -> None:
    prompt = oracle.chat_prompt(SHIPPED_MODEL, STORY)
    expected = oracle.beams(SHIPPED_MODEL, prompt, 12, width, width)
    choices = ask(deployment, STORY, 12, width, width)
    assert [choice["token_ids"] for choice in choices] == expected


@pytest.mark.parametrize(
    ("penalty", "stopping"), [(-1.0, False), (0.0, "never"), (1.0, True), (2.0, False), (2.0, "never")]
)
def test_answers_of_their_own_length(deployment: Deployment, penalty: float, stopping: bool | str) -> None:
    prompt = oracle.chat_prompt(SHIPPED_MODEL, FRUITS)
    options = {"length_penalty": penalty, "early_stopping": stopping}
    expected = oracle.beams(SHIPPED_MODEL, prompt, 32, 4, 4, **options)
    choices = ask(deployment, FRUITS, 32, 4, 4, **options)
    assert [choice["token_ids"] for choice in choices] == expected
    _, tokenizer = oracle.load(SHIPPED_MODEL)
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in expected]
    assert [choice["message"]["content"] for choice in choices] == texts
    assert {choice["finish_reason"] for choice in choices} <= {"stop", "length"}
