"""Prefills: chunks of what is known, and the blocks for them."""

from collections.abc import Callable
from typing import Any

from scheduler_svc.core.fleet import Fleet

MakeBench = Callable[..., Any]


def test_a_prompt_is_computed_in_chunks_of_the_budget(bench: MakeBench) -> None:
    one = bench(token_budget=5)
    one.arrive([1] * 12, max_tokens=2)
    rows = [
        (plan.rows.starts, plan.rows.counts, plan.rows.samples) for plan in (one.step() for _ in range(4))
    ]
    assert rows == [((0,), (5,), (0,)), ((5,), (5,), (0,)), ((10,), (2,), (1,)), ((12,), (1,), (1,))]


def test_only_new_blocks_are_told(bench: MakeBench) -> None:
    one = bench(block_size=4)
    one.arrive([1] * 4, max_tokens=8)
    told = [list(one.step().table_appends.blocks) for _ in range(8)]
    assert told == [[0], [1], [], [], [], [2], [], []]


def test_a_prefill_is_as_urgent_as_the_most_urgent_that_waits_for_its_prefix(bench: MakeBench) -> None:
    one = bench(token_budget=8, num_blocks=32, block_size=4)
    one.fleet = Fleet(8, "priority")
    one.scheduler, _ = one.fleet.add_worker(one.scheduler.limits)
    maker = one.arrive([1] * 40, priority=5).sequences[0]
    one.step()
    older = one.arrive([2] * 40, priority=3).sequences[0]
    assert one.step().rows.slots == (older.slot,)
    one.arrive([1] * 20, priority=1)
    one.step()  # finds whom the newcomer waits for
    assert one.step().rows.slots == (maker.slot,)
