"""What is planned, step by step, and what results mean."""

from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import RowFailed, WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import Outcome, StepPlan, StepResult
from scheduler_svc.core.request import Finish, SoFar
from scheduler_svc.core.sequence import SequenceGroup, State


class Bench:
    """One scheduler with a strict worker, stepped by hand."""

    def __init__(self, fake: SimpleNamespace, limits: dict[str, int], token_budget: int = 1000) -> None:
        self.fake = fake
        self.fleet = Fleet(token_budget)
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**limits))
        self.worker = fake.StrictWorker(self.scheduler.limits)

    def arrive(self, prompt: list[int], **fields: Any) -> SequenceGroup:
        group, outcome = self.fleet.accept(self.fake.request(prompt, **fields))
        assert not outcome.failed
        return group

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.check_integrity()
        return plan

    def complete(self, plan: StepPlan) -> Outcome:
        outcome = self.scheduler.complete(self.worker.execute(plan))
        self.fleet.settle(self.scheduler, outcome)
        self.scheduler.check_integrity()
        return outcome

    def step(self) -> StepPlan:
        plan = self.plan()
        self.complete(plan)
        return plan

    def run(self) -> int:
        """Lock step to the end; how many steps."""
        steps = 0
        while (plan := self.scheduler.plan()) is not None:
            self.complete(plan)
            steps += 1
            assert steps < 1000
        return steps


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(fake: SimpleNamespace) -> MakeBench:
    def make(token_budget: int = 1000, **limits: int) -> Bench:
        return Bench(fake, limits, token_budget)

    return make


def test_a_prompt_is_computed_in_chunks_of_the_budget(bench: MakeBench) -> None:
    one = bench(token_budget=5)
    one.arrive([1] * 12, max_tokens=2)
    rows = [
        (plan.rows.starts, plan.rows.counts, plan.rows.samples) for plan in (one.step() for _ in range(4))
    ]
    assert rows == [((0,), (5,), (0,)), ((5,), (5,), (0,)), ((10,), (2,), (1,)), ((12,), (1,), (1,))]


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


def test_only_new_blocks_are_told(bench: MakeBench) -> None:
    one = bench(block_size=4)
    one.arrive([1] * 4, max_tokens=8)
    told = [list(one.step().table_appends.blocks) for _ in range(8)]
    assert told == [[0], [1], [], [], [], [2], [], []]


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


def test_a_batch_at_rest_hands_back_its_slots(bench: MakeBench) -> None:
    one = bench()
    one.arrive([1], max_tokens=1)
    one.step()
    last = one.step()
    assert (last.freed_slots, last.rows.slots) == ((0,), ())
    assert one.scheduler.plan() is None
    assert one.scheduler.idle
    assert one.worker.slots == {}


def test_cancelled_in_flight_is_dropped(bench: MakeBench) -> None:
    one = bench()
    group = one.arrive([1] * 9, n=2, max_tokens=9)
    plan = one.plan()
    one.fleet.cancel(group)
    assert one.scheduler.state.batch.pool.free_blocks == 16
    assert one.complete(plan).gains == []
    one.run()
    assert one.scheduler.idle


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


def test_output_is_cached_too(bench: MakeBench) -> None:
    one = bench()
    first = one.arrive([1, 2], max_tokens=11)
    one.run()
    again = one.arrive([*first.sequences[0].tokens, 3], max_tokens=1)
    one.run()
    assert again.cached_tokens == 12


def test_only_confirmed_tokens_are_cached(bench: MakeBench) -> None:
    one = bench()
    one.arrive([1] * 8, max_tokens=9)
    one.plan()
    same = one.arrive([1] * 8, max_tokens=9)
    assert one.plan().rows.counts == (1,)  # the same prompt waits until it is known to have been computed
    assert same.cached_tokens is None
    assert one.scheduler.state.batch.pool.cached_blocks == 0


def test_equal_prompts_that_come_together_are_computed_once(bench: MakeBench) -> None:
    one = bench(num_blocks=64, max_slots=8, token_budget=16, max_step_tokens=16)
    groups = [one.arrive([1] * 32, max_tokens=3) for _ in range(8)]
    one.run()
    assert [group.cached_tokens for group in groups] == [0] + [28] * 7
    assert one.worker.computed_tokens == 32 + 7 * 4 + 8 * 2  # prompt, its last block for the others, outputs


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


def test_a_row_error_ends_its_request_alone(bench: MakeBench) -> None:
    one = bench()
    good = one.arrive([1], max_tokens=3)
    bad = one.arrive([one.fake.POISON, 2], n=2, max_tokens=3)
    outcome = one.complete(one.plan())
    ((failed, error),) = outcome.failed
    assert failed is bad
    assert isinstance(error, RowFailed)
    assert [gain.group for gain in outcome.gains] == [good]
    one.run()
    assert list(good.sequences[0].tokens[1:]) == one.fake.reference(good.request, 0, 64)


@pytest.mark.parametrize(
    "answer",
    [
        StepResult(2, [1]),
        StepResult(1, []),
        StepResult(1, [1, 1]),
        StepResult(1, [-1]),
        StepResult(1, [40]),
        StepResult(1, [1], {1: "no such row"}),
    ],
)
def test_an_answer_that_does_not_fit_the_plan_is_a_fault(bench: MakeBench, answer: StepResult) -> None:
    one = bench()
    group = one.arrive([1], max_tokens=3)
    one.plan()
    with pytest.raises(WorkerFault):
        one.scheduler.complete(answer)
    one.fleet.remove_worker(one.scheduler)
    assert list(group.sequences[0].tokens) == [1]


def test_an_answer_to_nothing_is_a_fault(bench: MakeBench) -> None:
    with pytest.raises(WorkerFault):
        bench().scheduler.complete(StepResult(1, []))


def test_slots_never_outnumber_the_budget(bench: MakeBench) -> None:
    one = bench(token_budget=3, max_slots=8)
    for number in range(6):
        one.arrive([number] * 3, max_tokens=4)
    assert one.run() < 60
