"""A long prompt beside answers: it is computed in chunks, and they go on in every step."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.sequence import State

PROMPT = 32_000
LIMITS = {"num_blocks": 2500, "block_size": 16, "max_slots": 16, "max_model_len": 33_000}

Make = Callable[..., Any]


@pytest.mark.parametrize("step_tokens", [128, 512])
@pytest.mark.parametrize("depth", [1, 2])
def test_who_decodes_gains_a_token_in_every_step(alone: Make, step_tokens: int, depth: int) -> None:
    one = alone(depth, max_step_tokens=step_tokens, **LIMITS)
    answers = [one.arrive([token], max_tokens=2000, seed=token) for token in range(8)]
    one.run(8)
    long = one.arrive([token % 37 for token in range(PROMPT)], max_tokens=2)
    (sequence,) = long.sequences
    chunks = 0
    while sequence.state in (State.WAITING, State.PREFILL):
        before = [len(one.given[group][0]) for group in answers]
        computed = one.worker.computed_tokens
        assert one.step()
        assert [len(one.given[group][0]) for group in answers] == [count + 1 for count in before]
        # What a step computes bounds its time, and with it the pause between two tokens of an answer.
        assert one.worker.computed_tokens - computed <= step_tokens * (depth if chunks == 0 else 1)
        chunks += 1
    # Of every step the answers take eight tokens, and the prompt has the rest.
    assert PROMPT / (step_tokens - 8) <= chunks <= PROMPT / (step_tokens - 8) + depth + 1
