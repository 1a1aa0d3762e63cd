"""The curve and the index of fairness, against sums done by hand."""

import pytest

from ops.simulate.curve import BINS, Curve
from ops.simulate.fairness import fairness, jain, max_min


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
