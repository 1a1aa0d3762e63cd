"""Whether Quire and transformers write the same: greedy answers to the same prompts."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import httpx

from ops.bench.engines.competitors import Quire, Transformers
from ops.bench.load.workload import Question


def agreement(quire: Quire, other: Transformers, questions: Sequence[Question]) -> dict[str, Any]:
    """How many answers are the same, and after how many tokens the first that is not parts.

    In float32 all should be the same; with fewer digits two tokens are now and then as good as each other.
    """
    theirs = other.ask(questions, len(questions)).generated
    ours = [_tokens(quire, question) for question in questions]
    parted = [_common(*pair) for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    return {
        "with": other.name,
        "asked": len(questions),
        "same": len(questions) - len(parted),
        "parted_after": parted[0] if parted else None,
    }


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    same = (mine == theirs for mine, theirs in zip(one, other, strict=False))
    return sum(takewhile(bool, same))


def _tokens(quire: Quire, question: Question) -> list[int]:
    body = {
        "model": quire.deployment.model,
        "prompt": question.prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    url = f"{quire.deployment.url}/v1/completions"
    answer = httpx.post(url, json=body, timeout=600, trust_env=False).raise_for_status()
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens
