"""How much may wait, and what those are told who may not."""

import pytest

from scheduler_svc.admission import Admission
from scheduler_svc.core.backlog import Tally, Waiting
from scheduler_svc.core.errors import TooMuchWaits
from scheduler_svc.core.fleet import Fleet


def refused(
    admission: Admission, line: tuple[int, int], prompt: int = 1, now: float = 0.0, **others: tuple[int, int]
) -> int | None:
    """`line`: requests and tokens of the tenant that asks; `others`: of other tenants."""
    lines = {name: each for name, each in {"asks": line, **others}.items() if each[0]}
    tenants = {name: Tally(requests, requests, tokens) for name, (requests, tokens) in lines.items()}
    every = Tally()
    for each in tenants.values():
        every.add(each.requests, each.sequences, each.tokens)
    try:
        admission.check(Waiting(tenants, every, room=0), "asks", prompt, now)
    except TooMuchWaits as error:
        return error.retry_after
    return None


def test_requests_and_tokens_are_limited() -> None:
    assert refused(Admission(2, 0), (1, 10**6)) is None
    assert refused(Admission(2, 0), (2, 2)) == 1
    assert refused(Admission(0, 100), (9, 90), prompt=10) is None
    assert refused(Admission(0, 100), (9, 90), prompt=11) == 1
    assert refused(Admission(0, 100), (0, 0), prompt=1000) is None
    limited = [Admission(*most).limited for most in ((0, 0), (1, 0), (0, 1))]
    assert limited == [False, True, True]


@pytest.mark.parametrize(("rate", "seconds"), [(100, 10), (10, 100), (10_000, 1)])
def test_they_are_told_how_long_the_line_takes(rate: int, seconds: int) -> None:
    admission = Admission(1, 0)
    for second in range(100):  # the pace of long ago does not count
        admission.note(second if second < 50 else 50 + rate * (second - 50), float(second))
    assert refused(admission, (5, 1000), now=99.0) == seconds


def test_however_often_it_is_measured_the_window_has_few_samples() -> None:
    admission = Admission(1, 0)
    assert not Admission(0, 0).due(0.0), "nobody is refused"
    measured = 0
    for millisecond in range(0, 60_000, 10):
        if admission.due(millisecond / 1000):
            admission.note(millisecond, millisecond / 1000)
            measured += 1
    assert (measured, len(admission._samples)) == (120, 61)


def test_two_measurements_give_a_rate() -> None:
    admission = Admission(1, 0)
    admission.note(0, 0.0)
    assert refused(admission, (1, 100), now=10.0) == 1, "not known yet"
    admission.note(20, 10.0)
    assert refused(admission, (1, 100), now=10.0) == 50


def test_a_line_that_stands_still_is_owned_up_to() -> None:
    admission = Admission(1, 0)
    for second in range(41):
        admission.note(7, float(second))
    assert refused(admission, (1, 1), now=40.0) == 30


def test_nobody_is_refused_because_of_others() -> None:
    requests, tokens = Admission(10, 0), Admission(0, 1000)
    assert refused(requests, (0, 0), hog=(500, 500)) is None
    assert refused(requests, (4, 4), hog=(500, 500)) is None
    assert refused(requests, (5, 5), hog=(500, 500)) == 1
    assert refused(requests, (5, 5), hog=(4, 4)) is None, "the queue is not full"
    assert refused(requests, (3, 3), hog=(500, 500), small=(1, 1)) is None
    assert refused(requests, (4, 4), hog=(500, 500), small=(1, 1)) == 1
    assert refused(tokens, (0, 0), prompt=9999, hog=(5, 5000)) is None
    assert refused(tokens, (1, 300), prompt=200, hog=(5, 5000)) is None
    assert refused(tokens, (1, 300), prompt=201, hog=(5, 5000)) == 1


def test_what_waits_of_others_counts_as_far_as_it_begins_before() -> None:
    admission = Admission(10, 0)
    for second in range(40):
        admission.note(100 * second, float(second))
    assert refused(admission, (50, 1000), now=39.0) == 10
    assert refused(admission, (50, 1000), now=39.0, hog=(500, 10**6)) == 20
    assert refused(admission, (50, 1000), now=39.0, hog=(500, 10**6), small=(1, 500)) == 25


def test_who_finds_a_free_slot_does_not_wait(fake) -> None:
    fleet = Fleet(64)
    fleet.accept(fake.request([1, 2, 3], n=2))
    assert fleet.waiting().of("") == (1, 6)
    scheduler, _ = fleet.add_worker(fake.limits(max_slots=2))
    assert fleet.waiting().of("") == (0, 0)
    for _ in range(4):
        fleet.accept(fake.request([1] * 5))
    assert (fleet.waiting().requests, fleet.waiting().tokens) == (4, 17), "two thirds of 26 tokens"
    scheduler.plan()
    # The second sample waits for the first to compute the prompt, and its slot has gone to the next.
    assert (fleet.waiting().of(""), fleet.admitted_tokens) == ((4, 18), 8)
    fleet.remove_worker(scheduler)
    assert fleet.admitted_tokens == 8
