"""Fairness between tenants: Jain's index of the service that each got over the service that it was due.

A tenant is due its max-min fair share: all service is divided evenly, and nobody gets more than it asked for.
The index is 1 if all tenants got their due, and 1/n if one of n tenants got everything.
Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination (DEC-TR-301, 1984), section 3.
"""

from collections.abc import Sequence


def jain(shares: Sequence[float]) -> float:
    """Jain's index of the shares: 1 if all are equal, or if there are none."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def max_min(asked: Sequence[float], total: float) -> list[float]:
    """Divide `total` by max-min fairness. `asked`: the most that each may get. Returns the parts."""
    parts = [0.0] * len(asked)
    order = sorted(range(len(asked)), key=asked.__getitem__)
    for place, number in enumerate(order):
        parts[number] = min(asked[number], total / (len(order) - place))
        total -= parts[number]
    return parts


def fairness(asked: Sequence[float], got: Sequence[float]) -> float:
    """Jain's index of `got` over the max-min fair shares of the sum of `got`."""
    parts = max_min(asked, sum(got))
    return jain([have / part for have, part in zip(got, parts, strict=True) if part > 0])
