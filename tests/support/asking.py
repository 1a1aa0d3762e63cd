"""Asking for streamed completions and keeping all that comes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import openai

NOTHING: Mapping[str, Any] = {}

Answer = dict[int, tuple[str, list[int]]]
"""Text and tokens of each choice."""


@dataclass
class Attempt:
    """One try to have something happen while an answer is under way."""

    hit: bool = False
    """Whether it came in time."""


def attempts(most: int = 5) -> Iterator[Attempt]:
    """Tries until one has hit. A machine that stalls lets an answer be over before a test can do anything."""
    for _ in range(most):
        attempt = Attempt()
        yield attempt
        if attempt.hit:
            return
    raise AssertionError(f"{most} times it did not happen in time")


async def ask(
    client: openai.AsyncOpenAI,
    on_tokens: Callable[[int], None] = lambda _: None,
    *,
    tokens: int = 200,
    extra: Mapping[str, Any] = NOTHING,
    **fields: Any,
) -> Answer:
    """Ask for `n` answers of `tokens` tokens. `on_tokens` gets the number of tokens with each chunk.

    `extra`: fields that the client library does not know.
    """
    text: dict[int, str] = {}
    received: dict[int, list[int]] = {}
    stream = await client.completions.create(
        model="quire-tiny",
        prompt="Once upon a time, in a forest,",
        max_tokens=tokens,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True, **extra},
        **fields,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            assert choice.model_extra is not None
            text[choice.index] = text.get(choice.index, "") + choice.text
            received.setdefault(choice.index, []).extend(choice.model_extra.get("token_ids") or [])
        on_tokens(sum(map(len, received.values())))
    return {index: (text[index], received[index]) for index in sorted(text)}
