"""What is remembered of one sequence for its drafts; see `capabilities/drafts.py`."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from scheduler_svc.core.lookup import Lookup, Prediction

PATIENCE = 5
"""After the n-th step in a row whose drafts did not pay, a sequence gets no drafts for 2^n tokens, and for
2^PATIENCE tokens at most."""


class Forced(NamedTuple):
    """A run of tokens each of which is the only one that a grammar allows in its place."""

    start: int
    """Position of the first one in the sequence's context."""
    tokens: Sequence[int]


class DraftState:
    """How many drafts a sequence gets next: more after all held, fewer after some did not."""

    __slots__ = ("_failed_steps", "_longest", "length", "lookup", "predicted", "prediction", "resumes")

    def __init__(self, longest: int, predicted: "array[int] | None" = None) -> None:
        """`longest`: drafts of one row at most. `predicted`: what the answer is expected to be like."""
        self._longest = longest
        self._failed_steps = 0
        """Steps in a row whose drafts did not pay, counted up to `PATIENCE`."""
        self.length = longest // 2
        """Drafts to try next."""
        self.resumes = 0
        """The sequence gets no drafts before it has this many tokens."""
        self.lookup = Lookup()
        self.prediction = Prediction(predicted) if predicted else None
        self.predicted = False
        """Whether the newest drafts are of the prediction."""

    def judge(self, drafted: int, held: int, due: float, tokens: int) -> None:
        """`held` of `drafted` drafts were right, and the sequence has `tokens` tokens now.

        `due`: drafts that must hold for the step to pay; one at least must.
        """
        if held == drafted:
            self.length = min(self._longest, self.length + 2)
        else:
            self.length = max(1, (self.length + held + 1) // 2)
        pays = held >= max(1.0, due)
        self._failed_steps = 0 if pays else min(PATIENCE, self._failed_steps + 1)
        if self._failed_steps:
            self.resumes = tokens + (1 << self._failed_steps)
