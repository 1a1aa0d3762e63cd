"""Prefills: chunks of what is known, and the blocks for them."""

from collections.abc import Callable
from typing import Any

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
