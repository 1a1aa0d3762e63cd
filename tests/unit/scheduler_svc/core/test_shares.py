"""Ranks, turns and accounts of one worker's tenants; see also `behaviour/test_tenants.py`."""

from array import array
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import IntegrityError
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.shares import RARELY, TURN, Shares

Make = Callable[..., Sequence]


@pytest.fixture
def shares() -> Shares:
    return Shares(step_tokens=100)


@pytest.fixture
def make(fake: SimpleNamespace, shares: Shares) -> Make:
    arrivals = iter(range(1, 100))

    def made(tenant: str = "a", user: str = "", measure: float = 0.0) -> Sequence:
        group = SequenceGroup(fake.request([1], tenant=tenant, user=user), next(arrivals))
        group.take_up(measure)
        shares.enter(group)
        return group.sequences[0]

    return made


def at(shares: Shares, step: int) -> None:
    shares.begin_step(step)


def test_ranks_are_merged_by_tenant_and_before_by_user(shares: Shares, make: Make) -> None:
    running = [make("a", user) for user in "xxxy"] + [make("b", measure=-9.0), make("b", measure=9.0)]
    running.sort(key=lambda each: each.age)
    for each in running:
        shares.took_slot(each)
    order = [each.group.arrival for each in shares.order(running)]
    # Of tenant a: x, then y's first, then the others of x. Measures of tenants are not compared.
    assert order == [1, 5, 4, 6, 2, 3]


def test_with_one_user_the_order_is_that_of_age(shares: Shares, make: Make) -> None:
    running = [make() for _ in range(3)]
    assert shares.order(running) is running
    assert not shares.contended


def test_a_turn_is_as_long_as_computing_again_took(shares: Shares, make: Make) -> None:
    sequence = make()
    for reached, needed in ((0, 0), (3, 2), (500, 100)):
        at(shares, 10)
        shares.took_slot(sequence)
        sequence.tokens, sequence.reached = array("i", [1] * (reached + 1)), reached
        for step in range(10, 10 + needed):
            at(shares, step)
            sequence.planned = step - 10
            shares.computes(sequence, 1)
            assert (sequence.turn_end == inf) or reached == 0
        at(shares, 10 + needed)
        sequence.planned = reached
        shares.computes(sequence, 1)
        assert sequence.turn_end == 10 + needed + max(TURN, needed)


def test_a_turn_begins_although_the_last_token_waits_for_a_grammar(shares: Shares, make: Make) -> None:
    """The result of its last row was dropped when it lost its slot."""
    sequence = make()
    sequence.tokens, sequence.reached = array("i", [1] * 10), 10
    at(shares, 1)
    shares.took_slot(sequence)
    for planned, end in ((8, inf), (9, 1 + TURN)):
        sequence.planned = planned
        shares.computes(sequence, 1)
        assert sequence.turn_end == end


def test_who_yields_in_which_order(shares: Shares, make: Make) -> None:
    running = [make("a") for _ in range(4)]
    at(shares, 1)
    for each in running:
        shares.took_slot(each)
        shares.computes(each, 1)
    waiting = make("b")
    at(shares, TURN)
    assert list(shares.owed([waiting])) == [waiting]
    assert not list(shares.yielding(running, waiting, lambda _: True)), "their turns are not over"
    at(shares, TURN + 1)
    assert list(shares.yielding(running, waiting, lambda _: True)) == running[:0:-1]
    shares.gave_slot(running.pop())
    shares.took_slot(waiting)
    assert list(shares.yielding([*running, waiting], make("b"), lambda _: False)) == [running[2]]


def test_a_last_slot_goes_round_while_that_costs_little(shares: Shares, make: Make) -> None:
    holder, waiting = make("a"), make("b")
    at(shares, 1)
    shares.took_slot(holder)
    shares.computes(holder, 1)
    at(shares, TURN - 1)
    assert not list(shares.owed([waiting]))
    at(shares, TURN + 1)
    assert list(shares.owed([waiting])) == [waiting]
    assert list(shares.yielding([holder], waiting, lambda _: False)) == [holder]
    holder.reached = 300  # 100 are to spare, so 200 are too many: two steps of the worker
    shares.charge_again(holder)
    at(shares, TURN + 1 + 2 * RARELY)
    assert not list(shares.yielding([holder], waiting, lambda _: False))
    at(shares, TURN + 2 + 2 * RARELY)
    assert list(shares.yielding([holder], waiting, lambda _: False)) == [holder]


def test_many_that_made_way_do_not_end_the_turns(shares: Shares, make: Make) -> None:
    holder, waiting = make("a"), make("b")
    at(shares, 1)
    shares.took_slot(holder)
    shares.computes(holder, 1)
    holder.reached = 200
    for _ in range(1000):
        shares.charge_again(holder)
    at(shares, 2 + 2 * RARELY)
    assert list(shares.owed([waiting])) == [waiting]


def test_what_is_found_in_the_cache_again_has_cost_nothing(shares: Shares, make: Make) -> None:
    holder, waiting = make("a"), make("b")
    at(shares, 1)
    shares.took_slot(holder)
    shares.computes(holder, 1)
    holder.reached = 300
    shares.charge_again(holder)
    shares.gave_slot(holder)
    at(shares, 2)
    holder.admission_cost = 12
    shares.took_slot(holder)
    shares.computes(holder, 12)
    at(shares, 2 + TURN)
    assert list(shares.yielding([holder], waiting, lambda _: False)) == [holder]


def test_two_users_of_a_tenant_make_way_for_each_other(shares: Shares, make: Make) -> None:
    running = [make("a", "x") for _ in range(3)]
    at(shares, 1)
    for each in running:
        shares.took_slot(each)
        shares.computes(each, 1)
    waiting = make("a", "y")
    at(shares, TURN + 1)
    assert list(shares.owed([waiting])) == [waiting]
    assert list(shares.yielding(running, waiting, lambda _: True)) == [running[2], running[1]]


def test_accounts_end_with_their_last_request(shares: Shares, make: Make) -> None:
    sequences = [make("a", "x"), make("a", "y"), make("b")]
    assert shares.contended
    for sequence in sequences[1:]:
        shares.leave(sequence.group)
    assert not shares.contended
    assert shares.check([])
    shares.took_slot(sequences[0])
    assert not shares.check([])
    assert shares.check(sequences[:1])


def test_accounts_are_among_what_is_checked(bench: Callable[..., Any]) -> None:
    one = bench()
    group = one.arrive([1, 2, 3])
    one.step()
    group.account.take_slots(1, 1)
    with pytest.raises(IntegrityError, match="account"):
        one.scheduler.check_integrity()


def test_a_fork_goes_on_with_the_turn_of_its_parent(bench: Callable[..., Any]) -> None:
    one = bench(token_budget=8)
    group = one.arrive(list(range(14)), n=3, max_tokens=5)
    for _ in range(3):
        one.step()
    assert {(each.turn_begin, each.turn_end) for each in group.sequences} == {(1, 1 + TURN)}
