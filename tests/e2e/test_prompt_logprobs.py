"""Log probabilities of prompts through all four processes, held against transformers' log softmax."""

from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from tests.support import oracle
from tests.support.deployment import SHIPPED_MODEL, Deployment

TEXTS = ["A fox.", "The owl sat in a tree, and it snowed.", "What is 7 + 5? " * 60]

torch.set_num_threads(1)  # the worker needs the others


def expected(text: str) -> tuple[list[int], Tensor]:
    """A text's tokens, and log probabilities [tokens - 1, vocab_size] of what follows each but the last."""
    model, tokenizer = oracle.load(SHIPPED_MODEL)
    tokens = tokenizer(text)["input_ids"]
    with torch.inference_mode():
        return tokens, model(torch.tensor([tokens])).logits[0, :-1].log_softmax(dim=-1)


def ask(deployment: Deployment, **fields: Any) -> list[Any]:
    body = {"model": "quire-tiny", "temperature": 0, "max_tokens": 1, **fields}
    answer = httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choices: list[Any] = answer.json()["choices"]
    return choices


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo(deployment: Deployment, max_tokens: int) -> None:
    """Beside each other; with the second parameter all of it is cached."""
    for choice, text in zip(
        ask(deployment, prompt=TEXTS, echo=True, logprobs=5, max_tokens=max_tokens), TEXTS, strict=True
    ):
        tokens, logprobs = expected(text)
        assert choice["text"].startswith(text)
        assert (choice["text"] == text) is (max_tokens == 0)
        found = choice["logprobs"]["token_logprobs"]
        assert (found[0], len(found)) == (None, len(tokens) + max_tokens)
        chosen = logprobs.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        torch.testing.assert_close(Tensor(found[1 : len(tokens)]), chosen, atol=1e-3, rtol=0)
        best = [max(top.values()) for top in choice["logprobs"]["top_logprobs"][1 : len(tokens)]]
        torch.testing.assert_close(Tensor(best), logprobs.max(dim=1).values, atol=1e-3, rtol=0)
        offsets = choice["logprobs"]["text_offset"][: len(tokens)]
        assert offsets == sorted(offsets)
        assert 0 <= offsets[-1] < len(text)


def test_prompt_logprobs_of_several_samples(deployment: Deployment) -> None:
    tokens, logprobs = expected(TEXTS[1])
    for choice in ask(deployment, prompt=tokens, prompt_logprobs=3, n=2, temperature=1):
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        for token, entry, row in zip(tokens[1:], rest, logprobs, strict=True):
            own = entry[str(token)]
            assert own["logprob"] == pytest.approx(row[token].item(), abs=1e-3)
            assert own["rank"] <= 3 or len(entry) == 4
            top = row.topk(3)
            assert {int(each) for each in entry} >= set(top.indices.tolist())
