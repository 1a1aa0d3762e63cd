"""Beam search, without a model and without memory: which continuations go on, and which are answers.

The rules are those of transformers' `generate` with `num_beams`, so that the same model gives the same
answers. With w = width, in every round

    beams      0 ... w - 1     each with a score, the sum of its tokens' log probabilities
    ranked     all their continuations by score; the first w that do not end go on as the next beams
    answers    those among the first w that do end, by score / length ** length_penalty; the best w are kept

and the search is over when no beam can become better than the worst of w answers, which `early_stopping`
says how to judge (Freitag and Al-Onaizan 2017, Beam Search Strategies for Neural Machine Translation).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import nlargest
from typing import NamedTuple


class EarlyStopping(IntEnum):
    """When a search with enough answers ends. The numbers are those of `quire.EarlyStopping`."""

    HEURISTIC = 0
    """When the best beam would be worse than the worst answer if it ended now."""
    FIRST = 1
    """As soon as there are w answers."""
    NEVER = 2
    """When the best beam would be worse than the worst answer at any length."""


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """Parameters of a search."""

    width: int
    """Number of beams, w."""
    length_penalty: float = 1.0
    """Above 0 longer answers are favoured, below 0 shorter ones."""
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC


class Candidate(NamedTuple):
    """A token that may follow a beam."""

    token: int
    logprob: float


class Hypothesis(NamedTuple):
    """A complete answer. Sorts by score."""

    score: float
    order: int
    """Higher for an answer that was found earlier: the earlier one wins a tie."""
    output: "array[int]"


class Continuation(NamedTuple):
    """A beam of the next round: the number of its parent, and the token that follows that one."""

    parent: int
    token: int


class Search:
    """The state of a search. Beams are numbered from 0; the caller keeps their tokens."""

    def __init__(self, ask: BeamSearch, stop_tokens: frozenset[int], most: int) -> None:
        """`stop_tokens`: each ends a beam. `most`: tokens that an answer may have."""
        self._ask = ask
        self._stop_tokens = stop_tokens
        self.most = most
        """Tokens that an answer may have. May change to a number that no beam has reached."""
        self._scores = [0.0]
        self._answers: list[Hypothesis] = []
        self._found = 0
        self.over = False

    def advance(
        self, outputs: Sequence["array[int]"], candidates: Sequence[Sequence[Candidate]]
    ) -> list[Continuation]:
        """Do one round. Returns the beams of the next round, best first; none if the search is over.

        `outputs`: each beam's output so far. `candidates`: what may follow each, with at least w tokens that
        do not end it.
        """
        width, length = self._ask.width, len(outputs[0]) + 1
        every = [
            (score + logprob, -beam, -token)
            for beam, (score, some) in enumerate(zip(self._scores, candidates, strict=True))
            for token, logprob in some
        ]
        last = length == self.most
        for score, beam, token in nlargest(width, every):
            if last or -token in self._stop_tokens:
                self._found += 1
                output = outputs[-beam] + array("i", (-token,))
                self._answers.append(Hypothesis(self._normalized(score, length), -self._found, output))
        self._answers = nlargest(width, self._answers)
        going = nlargest(width, (each for each in every if -each[2] not in self._stop_tokens))
        self.over = last or not self._can_improve(going[0][0], length)
        if self.over:
            return []
        self._scores = [score for score, _, _ in going]
        return [Continuation(-beam, -token) for _, beam, token in going]

    def best(self, count: int) -> list["array[int]"]:
        """Outputs of the best `count` answers, best first, of a search that is over."""
        return [answer.output for answer in self._answers[:count]]

    def _can_improve(self, best: float, length: int) -> bool:
        """Whether a beam can still replace an answer. `best`: score of the best beam."""
        ask = self._ask
        if len(self._answers) < ask.width:
            return True
        if ask.early_stopping is EarlyStopping.FIRST:
            return False
        longest = ask.early_stopping is EarlyStopping.NEVER and ask.length_penalty > 0
        return self._normalized(best, self.most if longest else length) > self._answers[-1].score

    def _normalized(self, score: float, length: int) -> float:
        return float(score / length**self._ask.length_penalty)
