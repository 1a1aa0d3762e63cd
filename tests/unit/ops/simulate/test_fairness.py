"""The index of fairness, against sums done by hand."""

import pytest

from ops.simulate.fairness import fairness, jain, max_min


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
