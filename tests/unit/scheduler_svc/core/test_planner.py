"""The order of the phases: what a step has of each."""

from collections.abc import Callable
from typing import Any

from scheduler_svc.core.images import Image
from scheduler_svc.core.sequence import State

MakeBench = Callable[..., Any]


def test_decodes_come_first_and_prefills_get_the_rest(bench: MakeBench) -> None:
    one = bench(token_budget=8)
    one.arrive([1], max_tokens=9)
    one.arrive([2], max_tokens=9)
    one.step()
    one.arrive([3] * 20)
    plan = one.step()
    assert plan.rows.counts == (1, 1, 6)
    assert plan.rows.samples == (1, 1, 0)
    assert one.step().rows.counts == (1, 1, 6)


def test_slots_never_outnumber_the_budget(bench: MakeBench) -> None:
    one = bench(token_budget=3, max_slots=8)
    for number in range(6):
        one.arrive([number] * 3, max_tokens=4)
    assert one.run() < 60


def test_decodes_prefills_forks_and_admissions_in_this_order(bench: MakeBench) -> None:
    one = bench(token_budget=16, max_step_tokens=16, max_slots=8, num_blocks=64)
    samples = one.arrive([1] * 6, n=2, max_tokens=9)
    long = one.arrive([2] * 20, max_tokens=9)
    assert one.step().rows.counts == (6, 10)
    late = one.arrive([3] * 2, max_tokens=9)
    plan = one.step()
    assert plan.rows.counts == (1, 10, 1, 2)
    sequences = [samples.sequences[0], long.sequences[0], samples.sequences[1], late.sequences[0]]
    assert plan.rows.slots == tuple(sequence.slot for sequence in sequences)


def test_whoever_waits_and_is_older_goes_before_a_running_prefill(bench: MakeBench) -> None:
    one = bench(token_budget=8, max_step_tokens=8, num_blocks=64)
    young = one.arrive([2] * 30, max_tokens=2)
    one.step()
    one.fleet._arrivals = -9  # as one that comes from a lost worker is older than those that run here
    old = one.arrive([1] * 6, max_tokens=2)
    plan = one.step()
    assert plan.rows.slots == (old.sequences[0].slot, young.sequences[0].slot)
    assert plan.rows.counts == (6, 2)


def test_a_freed_slot_may_be_filled_by_the_plan_that_frees_it(bench: MakeBench) -> None:
    one = bench(max_slots=1)
    one.arrive([1] * 3, max_tokens=1)
    one.step()
    one.arrive([2] * 3, max_tokens=1)
    plan = one.step()
    assert plan.freed_slots == (0,)
    assert [new.slot for new in plan.new_slots] == [0]


def test_a_prefill_that_was_preempted_and_comes_back_has_one_row(bench: MakeBench) -> None:
    """All prefills stand still: three for their images, and one for its grammar. Then all go on at once, when
    no block is left. The small one makes way for the first, and finds room again when the large one does."""
    one = bench(num_blocks=26, max_slots=6, max_step_tokens=64, images=True, recurrent=True)
    answer = one.arrive([9] * 4, max_tokens=60)
    one.step()

    def waits(before: int, tokens: int, name: int) -> Any:
        image = Image(before, tokens, 1, tokens, bytes(32), "image")
        return one.arrive([name] * (before + tokens), images=(image,), max_tokens=4)

    first, second = waits(4, 8, 1), waits(8, 4, 2)
    small = one.arrive([3] * 6, n=2, grammar=b"x", max_tokens=4)
    large = waits(28, 4, 4)
    pool = one.scheduler.state.batch.pool
    while pool.free_blocks:
        one.step()
    one.look()
    one.compile()
    plan = one.step()
    assert [new.request is small.request for new in plan.new_slots] == [True]
    assert large.sequences[0].state is State.PREEMPTED
    one.run()
    for group in (answer, first, second, small, large):
        for sequence in group.sequences:
            output = list(sequence.tokens[len(group.request.prompt) :])
            assert output == one.fake.reference(group.request, sequence.index, 64)
