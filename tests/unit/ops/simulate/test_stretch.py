"""Steps taken at once leave what steps taken one by one leave."""

from array import array
from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.simulate import stretch
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.shares import TURN

LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(6, 60),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "max_slots": st.integers(1, 6),
        "max_model_len": st.just(200),
        "max_step_tokens": st.integers(4, 24),
        "host_blocks": st.sampled_from([0, 0, 5, 40]),
        "window": st.sampled_from([0, 0, 1, 6, 30]),
    }
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 12),  # turns before it comes
        st.lists(st.integers(0, 1), min_size=1, max_size=24),
        st.integers(1, 40),
        st.sampled_from([1, 1, 1, 2]),
    ),
    min_size=1,
    max_size=10,
)


class Alone:
    """A scheduler whose worker answers every row with the same token."""

    def __init__(
        self, limits: dict[str, int], depth: int, policy: str = "fcfs", speculation: str = "off"
    ) -> None:
        values: dict[str, Any] = {"max_step_tokens": 16, "vocab_size": 40, **limits}
        self.fleet = Fleet(1000, policy, speculation)
        self.scheduler, _ = self.fleet.add_worker(WorkerLimits(**values, swap_block_us=0.4, token_us=1.0))
        self.depth = depth
        self.flights: deque[StepPlan] = deque()
        self.groups: list[Any] = []

    def ask(self, prompt: list[int], max_tokens: int, n: int, tenant: str = "") -> None:
        request = Request(f"r{len(self.groups)}", array("i", prompt), max_tokens, n=n, tenant=tenant)
        self.groups.append(self.fleet.accept(request)[0])

    def pump(self) -> None:
        while self.scheduler.in_flight < self.depth and (plan := self.scheduler.plan()) is not None:
            self.flights.append(plan)

    def turn(self) -> bool:
        """Complete the oldest plan and make the next; False if there is nothing to do."""
        self.pump()
        if not self.flights:
            return False
        plan = self.flights.popleft()
        outcome = self.scheduler.complete(StepResult(plan.step, [stretch.TOKEN] * sum(plan.rows.samples)))
        self.fleet.settle(self.scheduler, outcome)
        self.pump()
        return True

    def advance(self, steps: int) -> None:
        stretch.advance(self.scheduler, steps)
        self.flights = deque(flight.plan for flight in self.scheduler.flights)

    def served(self) -> list[int]:
        """What the tenant of each request has had."""
        return [group.account.owner.served(self.scheduler.step) for group in self.groups]

    def state(self) -> object:
        """Everything that decides what comes next."""
        pool = self.scheduler.state.batch.pool
        sequences = [
            (
                each.state,
                each.epoch,
                each.slot,
                list(each.tokens),
                each.computed,
                each.planned,
                each.chain,
                each.table and (each.table.blocks, each.table.room, each.table.named, each.table.dropped),
            )
            for group in self.groups
            for each in group.sequences
        ]
        flights = [(plan.step, plan.rows) for plan in self.flights]
        idle = list(pool._idle)
        return sequences, flights, pool._references, pool._hash_of, pool._block_of, pool._empty, idle


@settings(max_examples=300)
@given(limits=LIMITS, depth=st.integers(1, 3), requests=REQUESTS, seed=st.integers(0, 9))
def test_at_once_is_one_by_one(limits, depth, requests, seed) -> None:
    chance = Random(seed)
    slow, fast = Alone(limits, depth), Alone(limits, depth)
    coming = deque(requests)
    pause = coming[0][0]
    while True:
        while coming and pause <= 0:
            for one in (slow, fast):
                one.ask(*coming[0][1:])
                one.pump()
            coming.popleft()
            pause = coming[0][0] if coming else 0
        if steps := stretch.longest(fast.scheduler):
            steps = chance.randint(1, steps)
            # One that comes while the steps are under way may be submitted before they are taken.
            early = coming.popleft() if coming and pause <= steps else None
            if early:
                fast.ask(*early[1:])
            fast.advance(steps)
            moved = [slow.turn() for _ in range(steps)]
            assert all(moved)
            if early:
                slow.ask(*early[1:])
                fast.pump()
                slow.pump()
                pause = steps + (coming[0][0] if coming else 0)
        elif [slow.turn(), fast.turn()] == [False, False] and not coming:
            break
        else:
            steps = 1
        pause -= steps
        assert fast.state() == slow.state()
        fast.scheduler.check_integrity()
    assert fast.scheduler.idle
    assert fast.scheduler.held_blocks == 0


@pytest.fixture
def lone() -> Scheduler:
    """One sequence of 5 tokens that is to gain 20, decoding, with two plans under way."""
    alone = Alone({"num_blocks": 30, "block_size": 4, "max_slots": 2, "max_model_len": 64}, 2)
    alone.ask([1] * 5, 20, 1)
    for _ in range(3):
        alone.turn()
    return alone.scheduler


def test_a_stretch_goes_on_until_no_more_is_to_be_planned(lone: Scheduler) -> None:
    # Three tokens are there and two on the way: fifteen may still be planned.
    assert stretch.longest(lone) == 15
    stretch.advance(lone, 15)
    assert stretch.longest(lone) == 0
    assert lone.plan() is None


def test_tenants_have_had_as_much_after_a_stretch() -> None:
    limits = {"num_blocks": 4000, "block_size": 4, "max_slots": 8, "max_model_len": 500}
    slow, fast = Alone(limits, 1), Alone(limits, 1)
    for one in (slow, fast):
        for max_tokens in (490, *[4 * TURN] * 6):
            one.ask([1], max_tokens, 1, "much")
        one.ask([1], 490, 1, "less")
        for _ in range(4 * TURN + 9):
            one.turn()
        one.ask([1], 490, 1, "less")
        for _ in range(3):
            one.turn()
    steps = stretch.longest(fast.scheduler)
    assert steps > 3 * TURN
    fast.advance(steps)
    for _ in range(steps):
        slow.turn()
    assert fast.served() == slow.served()


def test_whoever_waits_ends_a_stretch(lone: Scheduler) -> None:
    fleet = Fleet(1000)
    fleet.add_worker(lone.limits)
    group, _ = fleet.accept(Request("r", array("i", [2, 3])))
    lone.submit(group)
    assert stretch.longest(lone) == 0


def test_a_stretch_takes_no_more_blocks_than_there_are() -> None:
    alone = Alone({"num_blocks": 6, "block_size": 2, "max_slots": 2, "max_model_len": 64}, 1)
    alone.ask([0, 1], 10, 1)
    alone.ask([1, 0], 10, 1)
    alone.turn()
    # Two sequences of three tokens; six blocks hold two of six, though each may get twelve long.
    assert 0 < stretch.longest(alone.scheduler) <= 4


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_that_order_rows_take_every_step(policy: str) -> None:
    alone = Alone({"num_blocks": 30, "block_size": 4, "max_slots": 2, "max_model_len": 64}, 2, policy)
    alone.ask([1] * 5, 20, 1)
    for _ in range(3):
        alone.turn()
    assert stretch.longest(alone.scheduler) == (0 if policy == "block-count" else 15)


def test_with_drafts_every_step_is_taken() -> None:
    limits = {"num_blocks": 30, "block_size": 4, "max_slots": 2, "max_model_len": 64}
    alone = Alone(limits, 2, speculation="ngram")
    alone.ask([1, 2, 3, 4, 5], 20, 1)
    alone.turn()
    assert stretch.longest(alone.scheduler) == 0
