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
        failures.report(place)
    assert failures.alike(7, patience=0) is alike


def test_others_may_come_later() -> None:
    failures = Failures(2)
    failures.report(3)
    other = Thread(target=failures.report, args=(3,))
    other.start()
    assert failures.alike(3, patience=60)
    other.join()


def test_what_has_been_asked_for_is_forgotten() -> None:
    failures = Failures(1)
    failures.report(3)
    assert failures.alike(3, patience=0)
    assert not failures.alike(3, patience=0)
