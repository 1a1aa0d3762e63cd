"""Beams on a worker: it reports what may follow, keeps nothing, and goes on with what it is given."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.errors import PlanError

PROMPT = [3, 14, 15, 92, 65]


def expected(model: Any, tokens: list[int], count: int) -> tuple[list[int], list[float]]:
    with torch.inference_mode():
        logprobs = model(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1)
    top = logprobs.topk(count)
    return top.indices.tolist(), top.values.tolist()


def given(slots: list[int], tokens: list[int]) -> dict[str, Any]:
    return {"given_tokens": (slots, tokens)}


def reported(make: SimpleNamespace, result: Any) -> tuple[list[int], list[int], list[int], list[float]]:
    return (
        make.unpack(result.candidates.entries),
        make.unpack(result.candidates.counts),
        make.unpack(result.candidates.top.tokens),
        make.unpack(result.candidates.top.logprobs, "<f4"),
    )


def test_candidates_are_the_most_likely_tokens(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    """Beside a greedy row, which keeps its token as ever."""
    runner = make.runner(tiny.directory)
    slots = [make.slot(0, PROMPT, [5, 6]), make.slot(1, PROMPT[:4], [7], candidates=3)]
    first = runner.execute(make.plan(1, [(0, 0, 5, 1), (1, 0, 4, 1)], new_slots=slots))
    tokens, logprobs = expected(tiny.model, PROMPT[:4], 3)
    entries, counts, found, numbers = reported(make, first)
    assert (entries, counts, found) == ([1], [3], tokens)
    assert numbers == pytest.approx(logprobs, abs=1e-4)
    # Not the best one is what it goes on with.
    fields = {"table_appends": ([1], [8]), **given([1], [tokens[2]])}
    second = runner.execute(make.plan(2, [(0, 5, 1, 1), (1, 4, 1, 1)], **fields))
    assert reported(make, second)[2] == expected(tiny.model, [*PROMPT[:4], tokens[2]], 3)[0]
    greedy = [make.unpack(result.tokens)[0] for result in (first, second)]
    assert greedy == make.expected(tiny.model, PROMPT, 2)


def test_a_beam_that_is_given_nothing_has_nothing_to_go_on_with(
    make: SimpleNamespace, tiny: SimpleNamespace
) -> None:
    runner = make.runner(tiny.directory)
    runner.execute(make.plan(1, [(0, 0, 5, 1)], new_slots=[make.slot(0, PROMPT, [5, 6], candidates=2)]))
    result = runner.execute(make.plan(2, [(0, 5, 1, 1)]))
    assert result.errors[0].message == "positions 5 to 5 of 5 known tokens"


def test_what_is_wrong_with_a_given_token_ends_that_sequence(
    make: SimpleNamespace, tiny: SimpleNamespace
) -> None:
    runner = make.runner(tiny.directory)
    slots = [make.slot(number, PROMPT, [2 * number, 2 * number + 1], candidates=2) for number in (0, 1)]
    runner.execute(make.plan(1, [(0, 0, 5, 1), (1, 0, 5, 1)], new_slots=slots))
    result = runner.execute(make.plan(2, [(0, 5, 1, 1), (1, 5, 1, 1)], **given([0, 1], [97, 96])))
    assert [(error.row, error.message) for error in result.errors] == [
        (0, "token 97 is not in the vocabulary of 97")
    ]
    assert reported(make, result)[0] == [1]


def test_more_candidates_than_there_are_tokens(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    runner = make.runner(tiny.directory)
    new = [make.slot(0, PROMPT, [5, 6], candidates=98)]
    result = runner.execute(make.plan(1, [(0, 0, 5, 1)], new_slots=new))
    assert result.errors[0].message == "98 candidates of a vocabulary of 97"


@pytest.mark.parametrize(("slots", "tokens"), [([0, 0], [1]), ([3], [1]), ([-1], [1]), ([8], [1])])
def test_a_plan_that_gives_to_nobody(
    make: SimpleNamespace, tiny: SimpleNamespace, slots: list[int], tokens: list[int]
) -> None:
    runner = make.runner(tiny.directory)
    new = [make.slot(0, PROMPT, [5, 6], candidates=2)]
    with pytest.raises(PlanError, match="given_tokens"):
        runner.execute(make.plan(1, [(0, 0, 5, 1)], new_slots=new, **given(slots, tokens)))
