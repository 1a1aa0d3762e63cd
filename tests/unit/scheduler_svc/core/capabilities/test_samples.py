"""Several samples of one prompt: one computes it, the others fork."""

from array import array
from collections.abc import Callable
from typing import Any

from scheduler_svc.core.request import SoFar

MakeBench = Callable[..., Any]


def test_siblings_of_a_prompt_of_one_token_share_nothing(bench: MakeBench) -> None:
    one = bench()
    group = one.arrive([3], n=3, max_tokens=2)
    one.step()
    plan = one.step()
    assert plan.rows.counts == (1, 1, 1)
    assert not plan.copies.sources
    one.run()
    outputs = [list(each.tokens[1:]) for each in group.sequences]
    assert outputs == [one.fake.reference(group.request, index, 64) for index in range(3)]
    blocks = [list(new.block_ids) for new in plan.new_slots]
    assert blocks == [[], []]


def test_a_sequence_that_is_resumed_forks_and_computes_its_own_output(bench: MakeBench) -> None:
    one = bench(max_step_tokens=32)
    request = one.fake.request(list(range(14)), n=2, max_tokens=9)
    known = one.fake.reference(request, 1, 64)[:3]
    group = one.arrive(list(range(14)), n=2, max_tokens=9, resumed=(SoFar(1, array("i", known), False),))
    one.step()
    plan = one.step()
    assert list(plan.new_slots[0].tokens) == [13, *known]
    assert plan.rows.counts == (1, 4)
    one.run()
    assert list(group.sequences[1].tokens[14:]) == one.fake.reference(request, 1, 64)


def test_when_the_leader_ends_early_the_next_one_leads(bench: MakeBench) -> None:
    one = bench(token_budget=8)
    group = one.arrive(list(range(14)), n=3, max_tokens=2)
    one.step()
    one.fleet.end_sequence(group, 0)
    one.scheduler.check_integrity()
    plan = one.step()
    # Two blocks were full and are cached.
    assert (plan.new_slots[0].sequence_index, len(plan.new_slots[0].block_ids)) == (1, 2)
    one.run()
    outputs = [list(each.tokens[14:]) for each in group.sequences]
    assert outputs == [[]] + [one.fake.reference(group.request, index, 64) for index in (1, 2)]


def test_of_a_recurrent_worker_samples_fork_before_the_last_token_is_computed(bench: MakeBench) -> None:
    """Fourteen tokens of a prompt leave a block unfilled: its copies have the state after thirteen."""
    one = bench(recurrent=True, token_budget=8)
    group = one.arrive(list(range(14)), n=3, max_tokens=4)
    plans = [one.step() for _ in range(3)]
    assert [plan.rows.counts for plan in plans] == [(8,), (5,), (1, 1, 1)]
    assert [new.forked_tokens for new in plans[2].new_slots] == [13, 13]
    assert len(plans[2].copies.targets) == 2
    one.run()
    outputs = [list(each.tokens[14:]) for each in group.sequences]
    assert outputs == [one.fake.reference(group.request, index, 64) for index in range(3)]


def test_where_a_block_ends_nothing_is_copied(bench: MakeBench) -> None:
    one = bench(recurrent=True)
    group = one.arrive(list(range(13)), n=2, max_tokens=4)
    plans = [one.step() for _ in range(2)]
    assert [plan.rows.counts for plan in plans] == [(13,), (1, 1)]
    assert not plans[1].copies.targets
    one.run()
    outputs = [list(each.tokens[13:]) for each in group.sequences]
    assert outputs == [one.fake.reference(group.request, index, 64) for index in range(2)]
