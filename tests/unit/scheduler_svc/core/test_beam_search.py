"""The search alone: over every continuation that there is, it finds what looking at all of them finds."""

from array import array
from itertools import product
from random import Random

import pytest

from scheduler_svc.core.beam_search import BeamSearch, Candidate, EarlyStopping, Search

STOP = 0


def model(seed: int, vocabulary: int) -> dict[tuple[int, ...], list[float]]:
    """Log probabilities of every next token after every output of up to four tokens."""
    random = Random(seed)
    return {
        output: [-random.random() * 3 for _ in range(vocabulary)]
        for length in range(4)
        for output in product(range(vocabulary), repeat=length)
    }


def found(
    search: Search, next_of: dict[tuple[int, ...], list[float]], count: int
) -> tuple[list[list[int]], int]:
    """The best answers, and after how many rounds."""
    outputs, rounds = [array("i")], 0
    while not search.over:
        candidates = [
            [Candidate(token, logprob) for token, logprob in enumerate(next_of[tuple(output)])]
            for output in outputs
        ]
        chosen = search.advance(outputs, candidates)
        outputs = [outputs[parent] + array("i", [token]) for parent, token in chosen]
        rounds += 1
    return [output.tolist() for output in search.best(count)], rounds


@pytest.mark.parametrize("seed", range(10))
def test_a_search_as_wide_as_all_there_is_finds_the_best_of_all(seed: int) -> None:
    next_of = model(seed, 3)
    scores = {}
    for length in range(1, 4):
        for output in product(range(3), repeat=length):
            if STOP not in output[:-1] and (length == 3 or output[-1] == STOP):
                scores[output] = sum(next_of[output[:at]][token] for at, token in enumerate(output))
    ask = BeamSearch(40, length_penalty=0.0, early_stopping=EarlyStopping.NEVER)
    best, _ = found(Search(ask, frozenset({STOP}), 3), next_of, 5)
    assert [tuple(output) for output in best] == sorted(scores, key=scores.__getitem__, reverse=True)[:5]


def test_the_length_penalty_decides_between_short_and_long() -> None:
    # Ending at once costs 1; going on costs 0.8 a token.
    next_of = {
        output: [-1.0, -0.8, -9.0] for length in range(3) for output in product(range(3), repeat=length)
    }
    for penalty, expected in ((0.0, [0]), (2.0, [1, 1, 1])):
        ask = BeamSearch(2, penalty, EarlyStopping.NEVER)
        assert found(Search(ask, frozenset({STOP}), 3), next_of, 1)[0] == [expected]


def test_early_stopping_decides_when_it_is_over() -> None:
    # Both beams may end in the second round; a long answer would still be better.
    next_of = {(): [-9.0, -0.1, -0.2]}
    for length in (1, 2, 3):
        for output in product(range(3), repeat=length):
            next_of[output] = [-0.1, -0.3, -9.0] if length == 1 else [-5.0, -0.1, -9.0]
    rounds = {}
    for stopping in EarlyStopping:
        search = Search(BeamSearch(2, 1.0, stopping), frozenset({STOP}), 4)
        _, rounds[stopping] = found(search, next_of, 1)
    assert rounds[EarlyStopping.FIRST] < rounds[EarlyStopping.NEVER] == 4
    assert rounds[EarlyStopping.FIRST] <= rounds[EarlyStopping.HEURISTIC] <= rounds[EarlyStopping.NEVER]


class Counted(float):
    """A log probability that counts how often scores are compared."""

    times = 0

    def __add__(self, other: float) -> "Counted":
        return Counted(float(self) + float(other))

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        Counted.times += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__


def test_many_stop_tokens_do_not_make_rounds_long() -> None:
    random, width, stops = Random(1), 32, 128
    search = Search(BeamSearch(width, 1.0, EarlyStopping.NEVER), frozenset(range(stops)), 9)
    scored = [[Candidate(token, Counted(-random.random())) for token in range(width + stops)]] * width
    search.advance([array("i")], scored[:1])
    Counted.times = 0
    search.advance([array("i", [0])] * width, scored)
    assert Counted.times < 4 * width * (width + stops)
