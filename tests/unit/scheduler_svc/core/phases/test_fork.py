"""Forks: a sequence begins in the blocks of another."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core import step_builder
from scheduler_svc.core.request import SoFar
from scheduler_svc.core.sequence import State

MakeBench = Callable[..., Any]


def test_siblings_fork_when_the_prompt_has_been_computed(bench: MakeBench) -> None:
    one = bench(token_budget=8)
    group = one.arrive(list(range(14)), n=3, max_tokens=5)
    assert one.step().rows.counts == (8,)
    assert one.step().rows.counts == (6,)
    plan = one.plan()
    # Three blocks of four are shared; the fourth has a token of the prompt and is copied for each. What the
    # first token is drawn from comes out of the prompt's last one, which each computes for itself.
    assert plan.rows.counts == (1, 1, 1)
    first, *others = group.sequences
    assert first.table is not None
    for new, sibling, target in zip(plan.new_slots, others, plan.copies.targets, strict=True):
        assert (new.forked_from, new.forked_tokens) == (first.slot, 13)
        assert (list(new.tokens), list(new.block_ids)) == ([13], [target])
        assert sibling.table is not None
        assert sibling.table.blocks[:3] == first.table.blocks[:3]
    assert plan.copies.sources == (first.table.blocks[3],) * 2
    one.complete(plan)
    one.run()
    assert one.worker.computed_tokens == 14 + 2 + 3 * 4
    outputs = [list(each.tokens[14:]) for each in group.sequences]
    assert outputs == [one.fake.reference(group.request, index, 64) for index in range(3)]


def test_a_fork_on_the_edge_of_a_block_copies_nothing(bench: MakeBench) -> None:
    one = bench()
    one.arrive(list(range(13)), n=2, max_tokens=2)
    one.step()
    plan = one.step()
    assert plan.new_slots[0].forked_tokens == 12
    assert not plan.copies.sources
    one.run()


def test_what_is_copied_is_kept_until_it_has_been(bench: MakeBench) -> None:
    one = bench()
    group = one.arrive(list(range(14)), n=2, max_tokens=9)
    one.step()
    plan = one.plan()
    source, pool = plan.copies.sources[0], one.scheduler.state.batch.pool
    one.fleet.cancel(group)
    assert pool.references(source) == 1
    assert pool.free_blocks == one.scheduler.limits.num_blocks - 1
    one.complete(plan)
    assert pool.free_blocks == one.scheduler.limits.num_blocks


def test_who_finds_no_room_to_fork_waits_and_begins_with_the_cache(bench: MakeBench) -> None:
    one = bench(max_slots=2)
    group = one.arrive(list(range(14)), n=4, max_tokens=5)
    one.step()
    plan = one.step()
    assert [new.forked_tokens for new in plan.new_slots] == [13]
    assert [each.state for each in group.sequences[2:]] == [State.WAITING] * 2
    one.run()
    outputs = [list(each.tokens[14:]) for each in group.sequences]
    assert outputs == [one.fake.reference(group.request, index, 64) for index in range(4)]


def test_a_plan_forks_a_bounded_number_of_tokens(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that go on with long answers: those for which the message has no room wait."""
    monkeypatch.setattr(step_builder, "MOST_NEW_BYTES", 4 * 10)
    one = bench(num_blocks=64, max_slots=8)
    request = one.fake.request(list(range(9)), n=5, max_tokens=20)
    answers = [one.fake.reference(request, index, 64) for index in range(5)]
    resumed = tuple(SoFar(index, array("i", answer[:6]), False) for index, answer in enumerate(answers))
    group = one.arrive(list(range(9)), n=5, max_tokens=20, resumed=resumed)
    one.step()
    plan = one.step()
    assert [(new.forked_tokens, len(new.tokens)) for new in plan.new_slots] == [(8, 7)] * 2
    assert [each.state for each in group.sequences[3:]] == [State.WAITING] * 2
    one.run()
    assert [list(each.tokens[9:]) for each in group.sequences] == answers
