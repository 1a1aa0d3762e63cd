"""Curves, against sums done by hand."""

import pytest

from ops.simulate.curve import BINS, Curve


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
