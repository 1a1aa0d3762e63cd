"""Requests that were meant for larger workers than there are now."""

from array import array
from types import SimpleNamespace

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import Outcome
from scheduler_svc.core.request import SoFar


@pytest.mark.parametrize("max_tokens", [0, 59])
def test_what_another_scheduler_s_larger_worker_began_waits_for_one(
    fake: SimpleNamespace, max_tokens: int
) -> None:
    fleet = Fleet(64)
    fleet.add_worker(fake.limits(num_blocks=8))
    whole = fake.reference(fake.request([1] * 5, max_tokens=max_tokens), 0, 64)
    known = SoFar(0, array("i", whole[:30]), False)
    request = fake.request([1] * 5, max_tokens=max_tokens, resumed=(known,))
    group, outcome = fleet.accept(request)
    assert outcome == Outcome()
    assert fleet.stranded() == [group]
    large, _ = fleet.add_worker(fake.limits())
    assert (group.limit, fleet.home(group)) == (64, large)
    worker = fake.StrictWorker(large.limits)
    while group.unfinished:
        outcome = large.complete(worker.execute(large.plan()))
        fleet.settle(large, outcome)
    assert list(group.sequences[0].tokens[5:]) == whole


def test_what_waits_for_a_worker_that_is_gone_fits_those_that_are_left(fake: SimpleNamespace) -> None:
    """It came while the larger of two workers was set aside for a suspect."""
    fleet, limits = Fleet(64), {"max_model_len": 200, "max_slots": 4}
    first, _ = fleet.add_worker(fake.limits(num_blocks=20, **limits))
    suspect, _ = fleet.accept(fake.request([1] * 40, max_tokens=30))
    first.plan()
    fleet.remove_worker(first)
    large, _ = fleet.add_worker(fake.limits(num_blocks=20, **limits))
    small, _ = fleet.add_worker(fake.limits(num_blocks=8, **limits))
    assert fleet.home(suspect) is large
    waits, _ = fleet.accept(fake.request([2] * 5))
    assert (waits.limit, fleet.home(waits)) == (80, None)
    fleet.remove_worker(large)
    assert (waits.limit, fleet.home(waits)) == (32, small)
    assert waits not in fleet.stranded()


@pytest.mark.parametrize(("max_tokens", "longest"), [(0, 9), (10, 15), (100, 9)])
def test_where_an_answer_goes_on_without_being_cut_short(
    fake: SimpleNamespace, max_tokens: int, longest: int
) -> None:
    """All that was asked for must fit, unless it was more than this worker holds, too. An answer that has not
    begun is cut short as any new one is."""
    fleet = Fleet(64)
    fleet.add_worker(fake.limits())
    known = SoFar(0, array("i", [1, 2, 3]), False)
    group, _ = fleet.accept(fake.request([1] * 5, max_tokens=max_tokens, resumed=(known,)))
    assert group.needs_length == longest
    fresh, _ = fleet.accept(fake.request([1] * 5, max_tokens=max_tokens))
    assert fresh.needs_length == 6
