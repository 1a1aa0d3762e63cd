"""Drafts out of the text itself."""

from array import array
from collections.abc import Iterator
from random import Random

import pytest

from scheduler_svc.core.lookup import Lookup, Prediction


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


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], [10, 11, 12, 13]),
        ([10], [11, 12, 13, 14]),
        ([9], []),
        ([10, 11, 7], []),
        ([10, 11, 7, 13], [14, 15, 16, 17]),  # one token is another one
        ([10, 11, 7, 12], []),
        ([10, 11, 7, 12, 13, 14], [15, 16, 17]),  # one token more
        ([10, 11, 13, 14, 15], [16, 17]),  # one less
        ([*range(10, 18), 18], []),
        ([1, 2, 3, 16, 17, 12], []),
        ([15, 16, 17], []),
    ],
)
def test_a_prediction_goes_on_where_the_answer_is(answer: list[int], expected: list[int]) -> None:
    prediction = Prediction(array("i", range(10, 18)))
    tokens = array("i", [10, 11, *answer])  # the prompt is no answer, whatever it is like
    assert prediction.guess(tokens, 2, 4).tolist() == expected


def test_the_nearest_of_several_places() -> None:
    """Lines that are alike, of which the second is answered with a change, and the third left out."""
    prediction = Prediction(array("i", [each for number in range(10, 15) for each in (1, 2, 3, number)]))
    answer = array("i", [1, 2, 3])
    assert prediction.guess(answer, 0, 2).tolist() == [10, 1]
    answer.extend([10, 1, 99, 2, 3, 11, 1, 2, 3])
    assert prediction.guess(answer, 0, 1).tolist() == [12]
    answer.extend([13, 1, 2, 3])
    assert prediction.guess(answer, 0, 1).tolist() == [13]


class Places(list[int]):
    """Where a run ends: may be searched, and not gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("each place is looked at")


def test_a_prediction_that_repeats_itself_is_not_gone_through() -> None:
    prediction, answer = Prediction(array("i", [7] * 50)), array("i", [7] * 3)
    assert len(prediction.guess(answer, 0, 2)) == 2
    prediction._places.update({run: Places(ends) for run, ends in prediction._places.items()})
    for _ in range(44):
        answer.append(7)
        assert prediction.guess(answer, 0, 2).tolist() == [7, 7]


def test_the_nearest_place_is_that_of_a_plain_search() -> None:
    random = Random(5)
    predicted = array("i", random.choices(range(3), k=80))
    prediction, answer, several = Prediction(predicted), array("i"), 0
    for _ in range(200):
        answer.append(random.randrange(3))
        expected = prediction._place + len(answer) - prediction._answered
        found = prediction.guess(answer, 0, 4)
        if ends := prediction._places.get(tuple(answer[-3:])):
            place = min(ends, key=lambda end: abs(end - expected))
            assert found == predicted[place : place + 4]
            several += len(ends) > 1
    assert several > 50


def test_a_short_prediction() -> None:
    for length in range(4):
        prediction = Prediction(array("i", range(length)))
        assert prediction.guess(array("i"), 0, 9).tolist() == list(range(length))
        assert not prediction.guess(array("i", [5, 6, 7, 8]), 0, 9)
