"""Preemption: who gives up blocks, and what becomes of its work in flight."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.phases.preempt import grow, lost_tokens
from scheduler_svc.core.request import Finish, Pooling
from scheduler_svc.core.sequence import State
from scheduler_svc.core.step_builder import StepBuilder

MakeBench = Callable[..., Any]


def test_the_victim_loses_least_and_is_younger(bench: MakeBench) -> None:
    one = bench(num_blocks=12, block_size=4, max_slots=4)
    groups = [one.arrive([number] * length, max_tokens=20) for number, length in enumerate((3, 9, 5, 5))]
    while all(group.sequences[0].state is not State.PREEMPTED for group in groups):
        one.step()
    states = [group.sequences[0].state for group in groups]
    assert states[:2] == [State.DECODE, State.DECODE]
    assert State.PREEMPTED in states[2:]
    one.run()
    for group in groups:
        output = list(group.sequences[0].tokens[len(group.request.prompt) :])
        assert output == one.fake.reference(group.request, 0, 32)


def test_the_older_is_never_the_victim_of_the_younger(bench: MakeBench) -> None:
    one = bench(token_budget=2, num_blocks=7, block_size=4, max_slots=2)
    young = one.arrive([2], max_tokens=18)
    one.step()
    one.fleet._arrivals = -9  # as one that comes from a lost worker is older than those that run here
    old = one.arrive([1] * 15, max_tokens=9)
    while young.sequences[0].state is State.DECODE:
        one.step()
        assert old.sequences[0].epoch == 0
    # The younger needed a block while the older stood still for one in the middle of its prompt.
    assert young.sequences[0].state is State.PREEMPTED
    assert old.sequences[0].state is State.PREFILL
    one.run()
    assert not old.unfinished
    assert not young.unfinished


def test_one_whose_last_token_is_in_flight_is_not_preempted(bench: MakeBench) -> None:
    one = bench(num_blocks=4, block_size=2, max_slots=2)
    old, young = one.arrive([1, 1], max_tokens=6), one.arrive([2, 2], max_tokens=3)
    plans = [one.plan(), one.plan()]
    one.complete(plans.pop(0))
    plans.append(one.plan())
    one.complete(plans.pop(0))
    # The older needs a fifth block; the younger is about to give up two.
    assert one.scheduler.plan() is None
    assert one.complete(plans.pop(0)).gains[1].finish is Finish.LENGTH
    assert young.sequences[0].state is State.DONE
    one.run()
    assert not old.unfinished


def test_a_preempted_result_in_flight_is_dropped_and_computed_again(bench: MakeBench) -> None:
    one = bench(num_blocks=4, block_size=2, max_slots=2)
    old = one.arrive([1, 1], max_tokens=6)
    young = one.arrive([2, 2], max_tokens=6)
    plans = [one.plan(), one.plan()]
    while young.sequences[0].state is not State.PREEMPTED:
        one.complete(plans.pop(0))
        plans.append(one.plan())
    assert young.sequences[0].epoch == 1
    for plan in plans:
        assert {gain.group for gain in one.complete(plan).gains} <= {old, young}
    one.run()
    for group in (old, young):
        assert list(group.sequences[0].tokens[2:]) == one.fake.reference(group.request, 0, 8)


def test_blocks_that_a_victim_has_just_got_are_not_told(bench: MakeBench) -> None:
    """Its slot is free, or another one has it by then."""
    one = bench(num_blocks=8, block_size=4, max_slots=2)
    old, young = (one.arrive([number] * 4, max_tokens=20).sequences[0] for number in range(2))
    one.step()
    state, step, slots = one.scheduler.state, StepBuilder(2, 16), (old.slot, young.slot)
    assert grow(state, step, young, 2)
    while young.table is not None:
        assert grow(state, step, old, 1)
    appends = step.finish().table_appends
    assert set(appends.slots) == {slots[0]}
    assert list(appends.blocks) == old.table.blocks[1:]


@pytest.mark.parametrize(("host_blocks", "lost"), [(0, 6), (9, 6 - 4 + 2 * 1)])
def test_blocks_that_others_share_and_those_that_the_host_takes_are_not_lost(
    bench: MakeBench, host_blocks: int, lost: int
) -> None:
    one = bench(num_blocks=16, block_size=4, max_slots=2, host_blocks=host_blocks, swap_block_us=1.0)
    first = one.arrive([1] * 8 + [2] * 6, max_tokens=9).sequences[0]
    one.step()
    other = one.arrive([1] * 8 + [3] * 6, max_tokens=9).sequences[0]
    one.step()
    assert first.table.blocks[:2] == other.table.blocks[:2]
    assert lost_tokens(one.scheduler.state, other) == lost
    assert lost_tokens(one.scheduler.state, first) == lost + 1


def test_one_that_takes_no_cached_blocks_loses_all_its_tokens(bench: MakeBench) -> None:
    one = bench(token_budget=8)
    pooled = one.arrive([1] * 30, pooling=Pooling.MEAN).sequences[0]
    one.step()
    one.scheduler.state.batch.pool.share(pooled.table.blocks)  # as another that begins alike
    assert lost_tokens(one.scheduler.state, pooled) == pooled.planned == 8


def test_a_free_slot_is_of_no_use_without_blocks(bench: MakeBench) -> None:
    one = bench(num_blocks=8, block_size=4, max_slots=3)
    one.fleet = Fleet(1000, "priority")
    one.scheduler, _ = one.fleet.add_worker(one.scheduler.limits)
    low = [one.arrive([number] * 9, max_tokens=9, priority=1).sequences[0] for number in range(2)]
    one.step()
    high = one.arrive([9] * 9, max_tokens=2).sequences[0]
    one.step()
    assert [each.state for each in (*low, high)] == [State.DECODE, State.PREEMPTED, State.DECODE]


def test_a_user_s_own_yield_by_policy_while_others_have_slots(bench: MakeBench) -> None:
    one = bench(num_blocks=32, max_slots=2)
    one.fleet = Fleet(1000, "priority")
    one.scheduler, _ = one.fleet.add_worker(one.scheduler.limits)
    low, other = (one.arrive([1] * 3, tenant=tenant, priority=1).sequences[0] for tenant in "ab")
    one.step()
    high = one.arrive([2] * 3, tenant="a").sequences[0]
    one.step()
    assert [each.state for each in (low, other, high)] == [State.PREEMPTED, State.DECODE, State.DECODE]
