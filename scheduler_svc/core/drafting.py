"""Speculative decoding: which sequences get drafts, and how many.

    plan      row of 1 + k tokens: the last one that is known, and k drafts
    result    the drafts that held, and one token of the target's own: 1 to 1 + k tokens of one step

The worker keeps a draft only if it is the token that it would have sampled (`sampling/samples.py`): drafts
change how many tokens a step gives and never which.

A step costs more with drafts in it, and those that do not hold were in vain. So each sequence has a pace:
more drafts after some that held, fewer after some that did not, none for a while after steps in vain. And
while many sequences decode, a step has enough to do without drafts.

A sequence with drafts in flight cannot be planned ahead, for where it goes on is not known. One that is to
get drafts waits until its token in flight is known, and for others with drafts in flight, to go with them.
"""

from collections import abc
from typing import ClassVar, Protocol

from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.lookup import Lookup
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.sequence import Sequence

SHORTEST = 3
"""While there is no room for so many drafts in every row, a step has enough to do without."""

PATIENCE = 5
"""After the n-th step in vain in a row a sequence gets no drafts for 2^n tokens, up to 2^PATIENCE."""


class Drafter(Protocol):
    """Where drafts come from."""

    longest: ClassVar[int]
    """Drafts of a row at most."""

    room: ClassVar[int]
    """Positions that the decodes of a step may have together, drafts included; measured."""

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        """Up to `count` tokens that may come after the confirmed ones; -1: the worker is to guess them."""


class NGrams:
    """See `lookup.py`. Drafts cost nothing until they are verified."""

    longest: ClassVar[int] = 8
    room: ClassVar[int] = 32

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        assert sequence.pace is not None
        return sequence.pace.lookup.guess(sequence.tokens, count)


class DraftModel:
    """The worker has a small model that guesses, one token after the other."""

    longest: ClassVar[int] = 4
    room: ClassVar[int] = 8

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        return [-1] * count


DRAFTERS: dict[str, type[Drafter]] = {"ngram": NGrams, "draft": DraftModel}
"""By the name of the setting."""


class Pace:
    """What drafting has brought a sequence so far."""

    __slots__ = ("_longest", "_misses", "length", "lookup", "resumes")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.length = longest // 2
        """Drafts to try next."""
        self.resumes = 0
        """How many tokens there must be before it is tried again."""
        self.lookup = Lookup()
        self._misses = 0

    def judge(self, drafted: int, held: int, tokens: int) -> None:
        """So many drafts held of those that were made; there are so many tokens now."""
        if held == drafted:
            self.length = min(self._longest, self.length + 2)
        else:
            self.length = max(1, (self.length + held + 1) // 2)
        self._misses = 0 if held else min(PATIENCE, self._misses + 1)
        if self._misses:
            self.resumes = tokens + (1 << self._misses)


class Speculation:
    """Drafts for the sequences of one worker."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def longest(self, decodes: int) -> int:
        """How many drafts a row may have while so many sequences decode."""
        room = self._drafter.room // max(1, decodes) - 1
        return min(self._drafter.longest, room) if room >= SHORTEST else 0

    def drafts(self, sequence: Sequence, longest: int) -> list[int]:
        """Drafts for after its confirmed tokens; none for beams, of which several are looked at anyway."""
        if sequence.group.beams is not None:
            return []
        if sequence.pace is None:
            sequence.pace = Pace(self._drafter.longest)
        pace = sequence.pace
        if len(sequence.tokens) < pace.resumes:
            return []
        return self._drafter.guess(sequence, min(longest, pace.length))


def speculation_of(name: str, limits: WorkerLimits) -> Speculation | None:
    """What the setting asks for with a worker of such limits; None for `off`, or if the worker cannot."""
    if name == "off" or (name == "draft" and not limits.can_draft):
        return None
    return Speculation(DRAFTERS[name]())


def kept(run: abc.Sequence[int]) -> int:
    """How many of the tokens that a row sampled count: those before the first -1."""
    return run.index(-1) if -1 in run else len(run)


def counting(result: StepResult, row_samples: abc.Sequence[int]) -> list[int]:
    """The tokens that count: none of rows that failed, nor those after drafts that did not hold."""
    found, begin = list[int](), 0
    for row, samples in enumerate(row_samples):
        if row not in result.errors:
            run = result.tokens[begin : begin + samples]
            found += run[: max(1, kept(run))]  # the first must be there
        begin += samples
    return found
