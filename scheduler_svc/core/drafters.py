"""Sources of drafts for speculative decoding, and how many drafts a row gets.

What a client predicts comes before any other source: where an answer is like that, it goes on like that.

A step costs more with drafts in it, and those that do not hold are wasted. So each sequence gets more drafts
after some that held, fewer after some that did not, and none for a while after steps in which too few held
(`draft_state.py`). How many are enough depends on the worker, and is learned from how long its steps take
(`draft_cost.py`). And while many sequences decode, a step computes enough without drafts.
"""

from dataclasses import dataclass

from scheduler_svc.core.draft_cost import DraftCost
from scheduler_svc.core.draft_state import DraftState
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.sequence import Sequence

SHORTEST = 3
"""Drafts that every row must have room for; with less room in a step no row gets any."""


@dataclass
class Drafter:
    """A source of drafts."""

    longest: int
    """Drafts of one row at most."""
    room: int
    """Positions that the decodes of a step may have together, drafts included; measured."""
    on_worker: bool = False
    """The worker guesses the tokens."""

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        """Up to `count` tokens that may follow the confirmed ones; -1: the worker guesses the token."""
        if self.on_worker:
            return [-1] * count
        assert sequence.draft_state is not None
        return sequence.draft_state.lookup.guess(sequence.tokens, count)


DRAFTERS = {
    # The text itself, see `lookup.py`: drafts cost nothing until they are verified.
    "ngram": Drafter(longest=8, room=16),
    # A small model on the worker, which guesses one token after the other.
    "draft": Drafter(longest=4, room=8, on_worker=True),
    # The model's own layer for multi-token prediction, which costs less than a model does.
    "mtp": Drafter(longest=4, room=16, on_worker=True),
}
"""By the value of the setting `speculation`."""


class Speculation:
    """Drafts for the sequences of one worker."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.cost = DraftCost(drafter.room // (1 + SHORTEST))

    def longest(self, decodes: int) -> int:
        """Drafts that a row may have while `decodes` sequences decode."""
        room = self._drafter.room // max(1, decodes) - 1
        return min(self._drafter.longest, room) if room >= SHORTEST else 0

    def drafts(self, sequence: Sequence, longest: int) -> list[int]:
        """Up to `longest` drafts for after the sequence's confirmed tokens; none for a beam,
        and none where each would have many log probabilities."""
        if sequence.group.beam_round is not None or sequence.group.request.alternatives:
            return []
        if sequence.draft_state is None:
            predicted = None if sequence.dropped_tokens else sequence.group.request.predicted
            if predicted is not None:  # an index takes memory, and an answer is no longer than that
                predicted = predicted[: sequence.group.limit]
            sequence.draft_state = DraftState(self._drafter.longest, predicted)
        state = sequence.draft_state
        if len(sequence.tokens) < state.resumes:
            return []
        count, state.predicted = min(longest, state.length), False
        if state.prediction is not None:
            prompt = len(sequence.group.request.prompt)
            if found := state.prediction.guess(sequence.tokens, prompt, count):
                state.predicted = True
                return found.tolist()
        return self._drafter.guess(sequence, count)


def speculation_of(name: str, limits: WorkerLimits) -> Speculation | None:
    """The speculation that a setting asks for; None for `off`, and if the worker cannot make its drafts."""
    if name == "off" or (DRAFTERS[name].on_worker and not limits.can_draft):
        return None
    return Speculation(DRAFTERS[name])
