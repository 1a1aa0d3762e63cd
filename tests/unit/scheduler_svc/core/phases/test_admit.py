"""Admissions: in order, with what is cached, while there is room."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from scheduler_svc.core import step_builder
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.images import Image
from scheduler_svc.core.phases.admit import LOOKED_UP
from scheduler_svc.core.sequence import State
from scheduler_svc.core.step_builder import MOST_NEW_BYTES

MakeBench = Callable[..., Any]


def test_a_prefix_is_shared_while_running_and_afterwards(bench: MakeBench) -> None:
    one = bench(num_blocks=32)
    prompt = list(range(16))
    first = one.arrive(prompt, max_tokens=4)
    one.step()
    second = one.arrive([*prompt, 1, 2], max_tokens=4)
    assert one.step().rows.counts == (1, 2)
    one.run()
    third = one.arrive(prompt, max_tokens=4)
    # All of it is cached, yet one token must be computed: the hit ends a block earlier.
    assert one.step().rows.counts == (4,)
    assert [each.cached_tokens for each in (first, second, third)] == [0, 16, 12]
    other = one.arrive(prompt, max_tokens=4, salt="tenant")
    one.run()
    assert other.cached_tokens == 0


def test_one_that_finds_too_few_blocks_looks_once_in_a_plan(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several prefills, each asks whether an older one waits."""
    one = bench(num_blocks=14, max_slots=8, token_budget=32, max_step_tokens=32)
    for number in range(4):  # they wait for their grammar before their last tokens
        one.arrive([number] * 6, grammar=b"x", max_tokens=2)
    one.step()
    assert [each.state for each in one.scheduler.state.batch.running] == [State.PREFILL] * 4
    one.fleet._arrivals = -9
    one.arrive([9] * 40, max_tokens=2)
    looks, match = [], BlockPool.match
    monkeypatch.setattr(BlockPool, "match", lambda pool, names: looks.append(1) or match(pool, names))
    assert one.scheduler.plan() is None
    assert one.scheduler.state.short_of_blocks
    assert len(looks) == 1


def test_output_is_cached_too(bench: MakeBench) -> None:
    one = bench()
    first = one.arrive([1, 2], max_tokens=11)
    one.run()
    again = one.arrive([*first.sequences[0].tokens, 3], max_tokens=1)
    one.run()
    assert again.cached_tokens == 12


def test_equal_prompts_that_come_together_are_computed_once(bench: MakeBench) -> None:
    one = bench(num_blocks=64, max_slots=8, token_budget=16, max_step_tokens=16)
    groups = [one.arrive([1] * 32, max_tokens=3) for _ in range(8)]
    one.run()
    assert [group.cached_tokens for group in groups] == [0] + [28] * 7
    assert one.worker.computed_tokens == 32 + 7 * 4 + 8 * 2  # prompt, its last block for the others, outputs


@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_a_long_prompt_is_named_in_steps_and_still_computed_once(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr("scheduler_svc.core.state.AHEAD", ahead)
    one = bench(num_blocks=128, max_slots=8, token_budget=8, max_step_tokens=8)
    first, second = (one.arrive([1] * 52, max_tokens=3) for _ in range(2))
    one.step()
    # The block of the last token, which is not complete before that, has no name.
    assert len(first.sequences[0].chain) == min(2 + ahead, 12)
    shorter = one.arrive([1] * 40, max_tokens=3)
    one.run()
    assert [each.cached_tokens for each in (first, second, shorter)] == [0, 48, 36]
    third = one.arrive([1] * 52, max_tokens=3)
    one.run()
    assert third.cached_tokens == 48


@pytest.mark.parametrize("cached", [False, True])
def test_a_step_does_not_name_the_blocks_of_all_that_wait(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    monkeypatch.setattr(step_builder, "MOST_NEW_NAMES", 30)
    one = bench(num_blocks=256, max_slots=64, token_budget=256, max_step_tokens=256, max_model_len=256)
    if cached:
        one.arrive([1] * 81, max_tokens=1)
        one.run()
    groups = [one.arrive([1] * 80 + [token], max_tokens=3) for token in range(30)]
    names = [len(groups)]  # the first block of each, by which the router knows it
    while (plan := one.scheduler.plan()) is not None:
        names.append(sum(len(each.sequences[0].chain) for each in groups))
        one.complete(plan)
    assert max(after - before for before, after in pairwise(names)) <= 30 + 20
    assert [group.cached_tokens for group in groups] == [80 if cached else 0] + [80] * 29


def test_a_step_does_not_look_up_the_blocks_of_all_that_wait(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names are known already where several workers were asked for them."""
    monkeypatch.setattr(step_builder, "MOST_NEW_NAMES", 30)
    one = bench(num_blocks=256, max_slots=64, token_budget=256, max_step_tokens=256, max_model_len=256)
    groups = [one.arrive([1] * 80 + [token], max_tokens=3) for token in range(30)]
    for group in groups:
        one.scheduler.state.name_ahead(group.sequences[0], 0)
    plan = one.plan()
    assert len(one.scheduler.state.unfinished.followers()) == 30 // (1 + 20 // LOOKED_UP) + 1
    one.complete(plan)
    one.run()
    assert [group.cached_tokens for group in groups] == [0] + [80] * 29


def test_who_waits_behind_many_names_does_not_wait_for_their_image(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_builder, "MOST_NEW_NAMES", 30)
    limits = {"token_budget": 256, "max_step_tokens": 256, "max_model_len": 256}
    one = bench(num_blocks=256, max_slots=64, images=True, **limits)
    sees = (Image(0, 8, 1, 8, bytes(32), "image"),)
    groups = [one.arrive([1] * 80 + [token], images=sees, max_tokens=3) for token in range(20)]
    other = one.arrive([2] * 4, max_tokens=1)
    calls = 0
    while other.unfinished and calls < 50:
        if (plan := one.scheduler.plan()) is not None:
            one.complete(plan)
        else:
            assert one.scheduler.plan_again
        calls += 1
    assert not other.unfinished
    one.step()  # hands its slot back
    assert one.scheduler.plan() is None
    assert not one.scheduler.plan_again
    one.look()
    one.run()
    assert not any(group.unfinished for group in groups)


def test_who_shares_less_is_let_on_sooner(bench: MakeBench) -> None:
    one = bench(num_blocks=64, max_slots=8, token_budget=8, max_step_tokens=8)
    one.arrive([1] * 32, max_tokens=9)
    short = one.arrive([1] * 8 + [2] * 4, max_tokens=9)
    long = one.arrive([1] * 24 + [2] * 4, max_tokens=9)
    one.step()
    assert (short.cached_tokens, long.cached_tokens) == (None, None)
    one.step()
    one.step()
    one.step()
    one.step()
    assert short.cached_tokens == 8
    one.run()
    assert long.cached_tokens == 24


def test_other_requests_overtake_one_that_waits_for_a_prefix(bench: MakeBench) -> None:
    one = bench(num_blocks=64, token_budget=12, max_step_tokens=12)
    one.arrive([1] * 32, max_tokens=2)
    same = one.arrive([1] * 32, max_tokens=2)
    other = one.arrive([2] * 4, max_tokens=2)
    one.step()
    one.step()
    one.step()
    assert same.cached_tokens is None
    assert other.cached_tokens == 0


@pytest.mark.parametrize("leaves", ["cancelled", "preempted"])
def test_when_the_maker_leaves_the_next_computes(bench: MakeBench, leaves: str) -> None:
    one = bench(num_blocks=64, token_budget=8, max_step_tokens=8)
    maker = one.arrive([1] * 32, max_tokens=2)
    same = [one.arrive([1] * 32, max_tokens=2) for _ in range(2)]
    one.step()
    if leaves == "cancelled":
        one.fleet.cancel(maker)
    else:
        one.scheduler.state.batch.leave(maker.sequences[0], State.PREEMPTED)
        one.scheduler.state.waiting.push(maker.sequences[0])
    one.run()
    assert not any(group.unfinished for group in same)
    assert (
        sorted(group.cached_tokens or 0 for group in same) == [8, 28] if leaves == "cancelled" else [28, 28]
    )


def test_one_that_is_cancelled_while_it_waits_for_a_prefix_is_forgotten(bench: MakeBench) -> None:
    one = bench(num_blocks=64, token_budget=8, max_step_tokens=8)
    one.arrive([1] * 32, max_tokens=2)
    same = one.arrive([1] * 32, max_tokens=2)
    one.step()
    one.step()
    one.fleet.cancel(same)
    one.scheduler.check_integrity()
    one.run()
    assert one.worker.computed_tokens == 33


def test_tenants_do_not_wait_for_each_others_prefixes(bench: MakeBench) -> None:
    one = bench(num_blocks=64, max_step_tokens=64)
    one.arrive([1] * 16, max_tokens=2, salt="one")
    one.arrive([1] * 16, max_tokens=2, salt="two")
    assert one.plan().rows.counts == (16, 16)


def test_admission_keeps_a_watermark(bench: MakeBench) -> None:
    one = bench(num_blocks=8, block_size=4)
    one.arrive([1] * 14, max_tokens=15)
    one.step()
    waits = one.arrive([2] * 16, max_tokens=4)
    one.step()
    assert waits.sequences[0].state is State.WAITING  # four blocks are free, one of them is the watermark
    fits = one.arrive([3] * 4, max_tokens=4)
    one.step()
    assert fits.sequences[0].state is State.WAITING  # nobody overtakes
    one.run()
    assert not waits.unfinished
    assert not fits.unfinished


def test_a_plan_admits_a_bounded_size_of_grammars(bench: MakeBench) -> None:
    """A plan is one message, and a message has a largest size. Nobody is left behind for it."""
    one = bench(num_blocks=64, max_slots=8, token_budget=64, max_step_tokens=64)
    size = MOST_NEW_BYTES // 2 - 100  # and tokens
    groups = [
        one.arrive([token] * 4, max_tokens=3, grammar=bytes([token]), plan_bytes=size) for token in range(8)
    ]
    for _ in range(2):
        assert len(one.step().new_slots) == 3
    one.run()
    assert not any(group.unfinished for group in groups)


def test_a_plan_admits_a_bounded_number_of_tokens(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts that are cached, as many as there are slots would fit into one step."""
    one = bench(num_blocks=64, max_slots=8, token_budget=64, max_step_tokens=64)
    one.arrive([1] * 33, max_tokens=1)
    one.run()
    monkeypatch.setattr(step_builder, "MOST_NEW_BYTES", 2 * 4 * (33 + 8))  # of tokens and blocks
    groups = [one.arrive([1] * 33, max_tokens=9) for _ in range(8)]
    assert [len(one.step().new_slots) for _ in range(3)] == [3, 3, 2]
    assert [group.cached_tokens for group in groups] == [32] * 8
    one.run()
    for group in groups:
        assert list(group.sequences[0].tokens[33:]) == one.fake.reference(group.request, 0, 64)
