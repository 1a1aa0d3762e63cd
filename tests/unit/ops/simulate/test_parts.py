"""The books, the curve and the index of fairness, against sums done by hand."""

from array import array

import pytest

from ops.simulate.cost import SECOND
from ops.simulate.curve import BINS, Curve
from ops.simulate.fairness import fairness, jain, max_min
from ops.simulate.ledger import Ledger, Live
from ops.simulate.trace import Arrival
from scheduler_svc.core.errors import IntegrityError


def test_a_curve_keeps_its_sum_however_long_it_gets() -> None:
    curve, total = Curve(), 0
    for number in range(3000):
        curve.add(number, number + 5, number % 7)
        total += 5 * (number % 7)
    means = curve.means(3004)
    assert curve.width == 32
    assert len(means) == -(-3004 // 32) <= BINS
    assert sum(means[:-1]) * 32 + means[-1] * (3004 % 32) == pytest.approx(total)


def test_a_curve_says_what_held_when() -> None:
    curve = Curve(10)
    curve.add(5, 25, 4.0)
    assert curve.means(30) == [2.0, 4.0, 2.0]
    assert curve.means(25) == [2.0, 4.0, 4.0]


def test_what_is_asked_for_is_shared_out_evenly() -> None:
    assert max_min([10, 2, 10], 12) == [5, 2, 5]
    assert max_min([1, 2], 12) == [1, 2]


def test_fairness_is_of_shares_in_what_was_due() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([5, 0, 0, 0]) == 0.25
    assert jain([]) == 1
    # One asks ten times as much, and gets as much as all others together could have had.
    assert fairness([100, 10], [20, 2]) == pytest.approx((20 / 12 + 2 / 10) ** 2 / (2 * (25 / 9 + 1 / 25)))
    assert fairness([100, 10], [12, 10]) == 1


def test_tokens_are_booked_one_by_one_and_many_at_once() -> None:
    lives = [
        Live(at, Arrival(0, 5, 4, tenant="me", priority=at, timeout=8.5), array("i", [1] * 5), (), 4)
        for at in (0, SECOND)
    ]
    one_by_one, at_once = Ledger(2, 10), Ledger(2, 10)
    times = [2 * SECOND, 3 * SECOND, 5 * SECOND]
    for ledger in (one_by_one, at_once):
        for live in lives:
            live.latest, live.missing = 0, 4
            ledger.ask(live)
        if ledger is at_once:
            ledger.tokens(lives, times)
        else:
            for now in times:
                for live in lives:
                    ledger.token(live, now)
        with pytest.raises(IntegrityError, match="misses 1"):
            ledger.end(lives[0], 0, times[-1])
        for live in lives:
            ledger.token(live, 9 * SECOND)
            ledger.end(live, 2, 9 * SECOND)
    found = at_once.summary()
    assert found == one_by_one.summary()
    assert found["first_token_ms"] == {"p50": 1000, "p90": 2000, "p99": 2000}
    assert found["urgent_first_token_ms"] == {"p50": 2000, "p90": 2000, "p99": 2000}
    assert found["in_time_share"] == 0.5
    assert found["between_tokens_ms"] == {"p50": 2000, "p90": 4000, "p99": 4000}
    assert found["end_to_end_ms"] == {"p50": 8000, "p90": 9000, "p99": 9000}
    assert (found["output_rate"], found["cached_share"]) == (round(8 / 9, 3), 0.4)
