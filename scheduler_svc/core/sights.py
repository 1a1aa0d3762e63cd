"""Sequences of one worker whose images have yet to be seen.

    slot with images, by a number     the worker says that it has seen them
    ──▶ in a plan ──▶ rows end before images ──▶ rows compute the images' tokens

A vision tower may take seconds for an image, and a step in which it is seen would let all answers wait as
long. So the worker looks at a new sequence's images beside its steps, and until it has seen them no row
computes any of their tokens.
"""

from itertools import count

from scheduler_svc.core.sequence import Sequence


class Sights:
    """Which sequences with a slot wait for their images, as of the newest plan."""

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}
        self._numbers = count(1)

    def take(self, sequence: Sequence) -> None:
        """The worker is about to look at the images of a sequence that has got a slot."""
        sequence.sight = next(self._numbers)
        self._waiting[sequence.sight] = sequence

    def seen(self, number: int) -> None:
        """The worker has seen these images. Nothing happens if their sequence has left meanwhile."""
        if (sequence := self._waiting.pop(number, None)) is not None:
            sequence.sight = 0

    def release(self, sequence: Sequence) -> None:
        """A sequence has lost its slot."""
        self._waiting.pop(sequence.sight, None)
        sequence.sight = 0

    def waiting(self) -> list[Sequence]:
        """The sequences that wait."""
        return list(self._waiting.values())
