"""Whether Quire and transformers write the same: greedy answers to the same prompts, as text."""

from collections.abc import Sequence
from itertools import takewhile

import httpx
from tokenizers import Tokenizer

from ops.bench.competitors import Quire, Transformers
from ops.bench.workload import Question


def agreement(quire: Quire, other: Transformers, questions: Sequence[Question]) -> dict[str, object]:
    """How many answers are the same, and for the first that is not, after how many characters.

    In float32 all should be; with fewer digits two tokens may be as good as each other.
    """
    tokenizer = Tokenizer.from_file(str(quire.terms.model / "tokenizer.json"))
    theirs = [tokenizer.decode(ids) for ids in other.ask(questions, len(questions)).generated]
    ours = [_text(quire, question) for question in questions]
    parted = [_common(*pair) for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    return {
        "with": other.name,
        "asked": len(questions),
        "same": len(questions) - len(parted),
        "parted_after": parted[0] if parted else None,
    }


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    same = (mine == theirs for mine, theirs in zip(one, other, strict=False))
    return sum(takewhile(bool, same))


def _text(quire: Quire, question: Question) -> str:
    body = {
        "model": quire.deployment.model,
        "prompt": question.prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = httpx.post(
        f"{quire.deployment.url}/v1/completions", json=body, timeout=600, trust_env=False
    ).raise_for_status()
    return str(answer.json()["choices"][0]["text"])
