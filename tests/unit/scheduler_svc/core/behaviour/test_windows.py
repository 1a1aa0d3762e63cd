"""Blocks behind a sliding window are given back while their sequence runs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import IntegrityError, RequestRefused
from scheduler_svc.core.limits import length_limit
from scheduler_svc.core.sequence import State

LIMITS = {"window": 8, "block_size": 4, "num_blocks": 12, "max_model_len": 500, "max_step_tokens": 8}


Make = Callable[..., Any]


@pytest.fixture
def windowed(alone: Make) -> Make:
    """Makes schedulers of workers whose model has a window."""
    return lambda depth=2, **limits: alone(depth, **{**LIMITS, **limits})


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_prompt_and_an_answer_longer_than_the_pool(windowed: Make, depth: int) -> None:
    one = windowed(depth)
    group = one.arrive([token % 30 for token in range(150)], max_tokens=200)
    one.run()
    one.check(group)
    # The window, what is in flight, and what a block holds beside them.
    assert one.most_held <= (8 + depth * 8) // 4 + 2
    assert one.most_held < one.limits.num_blocks


def test_the_smallest_pool_that_does(windowed: Make) -> None:
    """Nine positions, the window's and the next, in three blocks of four if they begin badly."""
    one = windowed(num_blocks=4)
    group = one.arrive([1] * 60, max_tokens=40)
    one.run()
    one.check(group)


@pytest.mark.parametrize(
    ("changes", "longest"),
    [
        ({"num_blocks": 3}, 500),  # nine positions touch three blocks at most
        ({"num_blocks": 2}, 8),
        ({"num_blocks": 2, "window": 0}, 8),
        ({"num_blocks": 100, "window": 0}, 400),
        ({"num_blocks": 9, "block_size": 1}, 500),
        ({"num_blocks": 8, "block_size": 1}, 8),
        ({"num_blocks": 2, "block_size": 16}, 500),
        ({"num_blocks": 1, "block_size": 16}, 16),
        ({"num_blocks": 100, "window": 1000}, 400),
    ],
    ids=str,
)
def test_how_long_a_sequence_may_get(fake: SimpleNamespace, changes: dict[str, int], longest: int) -> None:
    limits = fake.limits(**{**LIMITS, **changes})
    assert limits.max_length == longest
    with pytest.raises(RequestRefused):
        length_limit(fake.request([1] * longest), limits)
    assert length_limit(fake.request([1] * (longest - 1)), limits) == longest


def test_a_long_prompt_is_admitted_beside_others(windowed: Make) -> None:
    """It asks for room for its window and a step, not for all of it, which the pool has not got."""
    one = windowed(num_blocks=16)
    first = one.arrive([1] * 10, max_tokens=100)
    one.run(4)
    second = one.arrive([2] * 200, max_tokens=5)
    one.run(2)
    assert second.sequences[0].state is State.PREFILL
    before = len(first.sequences[0].tokens)
    one.run(10)
    assert len(first.sequences[0].tokens) == before + 10, "who decodes goes on meanwhile"
    one.run()
    one.check(first)
    one.check(second)


@pytest.mark.parametrize("prompt", range(9, 22))
@pytest.mark.parametrize("depth", [1, 2])
def test_samples_fork_at_every_offset(windowed: Make, prompt: int, depth: int) -> None:
    one = windowed(depth, num_blocks=32)
    group = one.arrive(list(range(prompt)), n=3, max_tokens=20)
    one.run()
    one.check(group)
    assert one.worker.computed_tokens <= prompt + 3 * 21, "the prompt was computed once"


def test_a_fork_whose_blocks_were_given_back_begins_anew(windowed: Make) -> None:
    """Several results came before the next plan: the parent has gone on past the edge of a block."""
    one = windowed(3, num_blocks=32, block_size=1)
    group = one.arrive(list(range(12)), n=2, max_tokens=6)
    for _ in range(4):
        if (plan := one.scheduler.plan()) is not None:
            one.results.append(one.worker.execute(plan))
    for _ in range(len(one.results)):
        one.complete()
    leader, sibling = group.sequences
    assert sibling.state is State.FORK
    assert leader.table is not None
    assert leader.table.dropped > one.limits.outside_window(12)
    one.run()
    one.check(group)


def test_nobody_waits_for_a_prefix_that_is_gone(windowed: Make) -> None:
    """The first of two equal prompts runs on for long; its first blocks are soon another's."""
    one = windowed()
    first = one.arrive(list(range(30)) * 4, max_tokens=300)
    second = one.arrive(list(range(30)) * 4, max_tokens=3)
    one.run(100)
    assert first.unfinished
    assert not second.unfinished
    one.check(second)


def test_a_cached_prefix_is_used_without_holding_what_is_outside_the_window(windowed: Make) -> None:
    one = windowed(num_blocks=60)
    one.arrive(list(range(30)) * 3, max_tokens=2)
    one.run()
    computed = one.worker.computed_tokens
    group = one.arrive(list(range(30)) * 3 + [3, 4], max_tokens=10)
    one.step()
    table = group.sequences[0].table
    assert table is not None
    assert table.dropped == (92 - 8) // 4
    one.run()
    one.check(group)
    assert one.worker.computed_tokens == computed + 4 + 9


def test_what_is_outside_the_window_is_not_brought_back_from_the_host(windowed: Make) -> None:
    one = windowed(num_blocks=12, host_blocks=100, swap_block_us=1, token_us=10)
    one.arrive(list(range(30)) * 4, max_tokens=2)
    one.arrive([7] * 120, max_tokens=2)
    one.run()
    computed = one.worker.computed_tokens
    group = one.arrive(list(range(30)) * 4 + [3, 4], max_tokens=10)
    plan = one.scheduler.plan()
    assert plan is not None
    assert len(plan.swap_in.blocks) == 2, "the window's"
    one.results.append(one.worker.execute(plan))
    one.run()
    one.check(group)
    assert one.worker.computed_tokens == computed + 2 + 9


def test_a_block_in_the_window_that_was_given_back_is_noticed(windowed: Make) -> None:
    one = windowed()
    group = one.arrive([1] * 30, max_tokens=10)
    one.run(5)
    table = group.sequences[0].table
    assert table is not None
    table.drop(table.dropped + 2)
    with pytest.raises(IntegrityError, match="dropped"):
        one.scheduler.check_integrity()
