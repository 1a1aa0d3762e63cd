"""Decodes: one token a step for each sequence, planned ahead."""

from collections.abc import Callable
from typing import Any

from scheduler_svc.core.request import Finish

MakeBench = Callable[..., Any]


def test_a_row_may_use_a_token_in_flight(bench: MakeBench) -> None:
    one = bench()
    group = one.arrive([1, 2], max_tokens=3)
    first, second = one.plan(), one.plan()
    assert (second.rows.starts, second.rows.counts, second.rows.samples) == ((2,), (1,), (1,))
    assert len(group.sequences[0].tokens) == 2
    assert one.complete(first).gains[0].finish is Finish.NOT_FINISHED
    third = one.plan()
    assert third.rows.starts == (3,)
    # The third token is the last that is wanted: nothing to plan behind it.
    assert one.scheduler.plan() is None
    one.complete(second)
    assert one.complete(third).gains[0].finish is Finish.LENGTH


def test_a_stop_token_wastes_one_row_whose_result_is_dropped(bench: MakeBench) -> None:
    one = bench()
    request = one.fake.request([1], max_tokens=30)
    stop = one.fake.reference(request, 0, 64)[0]
    one.arrive([1], max_tokens=30, stop_token_ids=frozenset({stop}))
    first, second = one.plan(), one.plan()
    assert one.complete(first).gains[0].finish is Finish.STOP
    # Its blocks are free at once, and may go to another while the wasted row is still in flight.
    assert one.scheduler.state.batch.pool.free_blocks == 16
    late = one.arrive([5] * 60, max_tokens=2)
    third = one.plan()
    assert third.freed_slots == (0,)
    assert set(third.table_appends.blocks) & set(first.table_appends.blocks)
    assert one.complete(second).gains == []
    one.complete(third)
    one.run()
    assert list(late.sequences[0].tokens[60:]) == one.fake.reference(late.request, 0, 64)
