"""Ranks that have stopped at the same place are told from others."""

from threading import Thread

import pytest

from gpu_worker.ranks.failures import Failures


@pytest.mark.parametrize(
    ("places", "alike"), [([7, 7], True), ([7, 6], False), ([7], False), ([], False), ([7, 7, 7], False)]
)
def test_all_ranks_at_one_place(places: list[int], alike: bool) -> None:
    failures = Failures(2)
    for place in places:
        failures.report(0, place)
    assert failures.alike(7, patience=0) is alike


def test_others_may_come_later() -> None:
    failures = Failures(2)
    failures.report(0, 3)
    other = Thread(target=failures.report, args=(0, 3))
    other.start()
    assert failures.alike(3, patience=60)
    other.join()


def test_what_has_been_asked_for_is_forgotten() -> None:
    failures = Failures(1)
    failures.report(0, 3)
    assert failures.alike(3, patience=0)
    assert not failures.alike(3, patience=0)


def test_an_error_of_a_call_that_is_over_does_not_count() -> None:
    """A rank raised it, rank 0 did not, and the call ended for another reason. It may be told later."""
    failures = Failures(1)
    failures.report(0, 3)
    failures.reset()
    failures.report(0, 4)
    failures.report(1, 7)
    assert failures.alike(7, patience=0)
