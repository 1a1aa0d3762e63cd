"""How fairly tenants are served: Jain's index over what each got, as a share of what it should have got.

What a tenant should have got is its part when all service is shared out evenly and nobody gets more than
it asked for (max-min fairness). The index is 1 if all got that, and 1/n if one of n got everything.
Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination (DEC-TR-301, 1984), section 3.
"""

from collections.abc import Sequence


def jain(shares: Sequence[float]) -> float:
    """1 if all shares are equal; 1 if there are none, too."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def max_min(asked: Sequence[float], total: float) -> list[float]:
    """`total` shared out so that nobody could get more without one who has less getting less still."""
    parts = [0.0] * len(asked)
    order = sorted(range(len(asked)), key=asked.__getitem__)
    for place, number in enumerate(order):
        parts[number] = min(asked[number], total / (len(order) - place))
        total -= parts[number]
    return parts


def fairness(asked: Sequence[float], got: Sequence[float]) -> float:
    """Jain's index of what each of those who asked got, over its part of what all got."""
    parts = max_min(asked, sum(got))
    return jain([have / part for have, part in zip(got, parts, strict=True) if part > 0])
