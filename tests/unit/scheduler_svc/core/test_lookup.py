"""Drafts out of the text itself."""

from array import array
from random import Random

import pytest

from scheduler_svc.core.lookup import Lookup


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2, 3, 4]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3, 5, 1]),  # the latest place counts
        ([7, 7, 7, 7], [7] * 6),
        ([1, 2, 3, 4, 5, 6], []),
        ([1, 2], []),
        ([], []),
    ],
)
def test_lookup(tokens: list[int], expected: list[int]) -> None:
    lookup = Lookup()
    assert lookup.guess(array("i", tokens), 6) == expected
    assert lookup.guess(array("i", tokens), 6) == expected


def test_a_lookup_that_grows_finds_what_a_new_one_finds() -> None:
    random = Random(3)
    tokens = array("i")
    grown = Lookup()
    hits = 0
    for _ in range(300):
        tokens.append(random.randrange(3))
        if random.random() < 0.5:
            found = grown.guess(tokens, 4)
            assert found == Lookup().guess(tokens, 4)
            hits += bool(found)
    assert hits > 50
