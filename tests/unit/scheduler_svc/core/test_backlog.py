"""What waits is counted by tenant, and in the same time however much it is."""

from array import array
from functools import partial
from types import SimpleNamespace

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.request import SoFar
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.suspicion import Loss
from tests.support.counted import calls_of


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(64)


def test_a_request_counts_with_its_sequences_that_wait(fake: SimpleNamespace, fleet: Fleet) -> None:
    group, _ = fleet.accept(fake.request([1, 2, 3], n=3, tenant="a"))
    other, _ = fleet.accept(fake.request([1, 2], tenant="b"))
    waiting = fleet.waiting()
    assert (waiting.of("a"), waiting.of("b"), waiting.of("c")) == ((1, 9), (1, 2), (0, 0))
    assert (waiting.requests, waiting.tokens, waiting.tenants) == (2, 11, 2)
    fleet.end_sequence(group, 1)
    assert fleet.waiting().of("a") == (1, 6)
    fleet.cancel(group)
    fleet.cancel(other)
    waiting = fleet.waiting()
    assert (waiting.requests, waiting.tokens, waiting.tenants) == (0, 0, 0)


def test_a_prompt_of_one_token_waits_too(fake: SimpleNamespace, fleet: Fleet) -> None:
    groups = [fleet.accept(fake.request([1], tenant=tenant))[0] for tenant in "ab"]
    assert (fleet.waiting().requests, fleet.waiting().tenants) == (2, 2)
    fleet.cancel(groups[0])
    assert (fleet.waiting().requests, fleet.waiting().tenants) == (1, 1)


def test_each_tenant_has_its_part_of_the_free_slots(fake: SimpleNamespace, fleet: Fleet) -> None:
    fleet.add_worker(fake.limits(max_slots=3, num_blocks=64))
    for tenant in "aaaab":
        fleet.accept(fake.request([1] * 10, tenant=tenant))
    waiting = fleet.waiting()
    assert (waiting.requests, waiting.tokens, waiting.tenants) == (2, 20, 2)
    assert (waiting.of("a"), waiting.of("b")) == ((2, 16), (1, 4))
    assert waiting.begun_with(5) == 9


def test_samples_that_wait_for_their_first_count_too(fake: SimpleNamespace, fleet: Fleet) -> None:
    fleet.add_worker(fake.limits(max_slots=2))
    fleet.accept(fake.request([1] * 3, n=100))
    assert fleet.waiting().of("") == (1, 294)


def test_who_is_refused_does_not_wait(fake: SimpleNamespace, fleet: Fleet) -> None:
    group, _ = fleet.accept(fake.request([1] * 100))
    assert fleet.waiting().of("") == (1, 100)
    _, outcome = fleet.add_worker(fake.limits())
    assert [failed for failed, _ in outcome.failed] == [group]
    assert fleet.waiting().requests == 0


def test_a_request_that_is_ended_for_its_steps_does_not_wait(fake: SimpleNamespace, fleet: Fleet) -> None:
    group, _ = fleet.accept(fake.request([1] * 3))
    for _ in range(2):
        scheduler, _ = fleet.add_worker(fake.limits())
        scheduler.plan()
        assert fleet.waiting().requests == 0
        outcome = fleet.remove_worker(scheduler, Loss.RAISED, "why")
        ended = bool(outcome.failed)
        assert fleet.waiting().requests == (not ended)
    assert ended
    assert group.unfinished


@pytest.mark.parametrize("worker", [False, True])
def test_asking_accepting_and_cancelling_take_as_long_with_many(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, worker: bool
) -> None:
    monkeypatch.setattr(SequenceGroup, "__eq__", lambda one, other: one is other)  # so that a search counts
    monkeypatch.setattr(SequenceGroup, "__hash__", object.__hash__)
    calls = []
    for waiting in (50, 2000):
        fleet = Fleet(64)
        if worker:
            scheduler, _ = fleet.add_worker(fake.limits(max_slots=2))
        groups = [fleet.accept(fake.request([1, 2], tenant=str(number % 9)))[0] for number in range(waiting)]
        if worker:
            scheduler.plan()
        request = fake.request([1, 2])
        each = [
            partial(lambda one: one.waiting().of("3"), fleet),
            partial(fleet.accept, request),
            partial(fleet.cancel, groups[-1]),
        ]
        calls.append([calls_of(action) for action in each])
    assert calls[0] == calls[1]


def test_slots_are_free_for_what_waits_on_their_worker_alone(fake: SimpleNamespace, fleet: Fleet) -> None:
    """Others cannot go there: they are too long, as here, or have an adapter that it lacks."""
    small, _ = fleet.add_worker(fake.limits(max_slots=8, num_blocks=4))
    large, _ = fleet.add_worker(fake.limits(max_slots=1))
    groups = [fleet.accept(fake.request([1] * 30))[0] for _ in range(4)]
    stranded, _ = fleet.accept(fake.request([1] * 5, adapter="none has it"))
    assert {fleet.home(group) for group in groups} == {large}
    assert (fleet.waiting().requests, fleet.waiting().tokens) == (4, 100)
    short, _ = fleet.accept(fake.request([1] * 5, max_tokens=2))
    assert fleet.home(short) is small
    assert fleet.waiting().requests == 4, "there is a slot for it"
    large.plan()
    fleet.cancel(groups[0])
    assert fleet.waiting().requests == 3, "the next one's slot"
    fleet.remove_worker(large)
    assert fleet.waiting().requests == 4
    assert list(fleet._backlog._waiting_on) == [small]
    fleet.remove_worker(small)
    assert fleet.waiting().requests == 5
    for group in (*groups, stranded, short):
        fleet.cancel(group)
    assert not fleet.waiting().requests


def test_a_text_that_rolled_counts_with_what_it_keeps(fake: SimpleNamespace, fleet: Fleet) -> None:
    fleet.add_worker(fake.limits(max_slots=1, max_model_len=32))
    first, _ = fleet.accept(fake.request([1] * 5))
    so_far = SoFar(0, array("i", [2] * 500), finished=False)
    rolls, _ = fleet.accept(fake.request([1] * 5, rolling=True, resumed=(so_far,), max_tokens=900))
    tokens = len(rolls.sequences[0].tokens)
    assert tokens < 32
    assert fleet.waiting().tokens == (5 + tokens) // 2
    fleet.cancel(rolls)
    fleet.cancel(first)
    assert not fleet.waiting().tokens
