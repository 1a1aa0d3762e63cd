"""What a policy may decide. What it leaves alone is as in `fcfs`.

Every sequence has an age, (measure, arrival, index), that stays as it is while it runs: older before younger
everywhere, in the waiting line, in memory and in a step's budget. Any measure gives a total order, and that
is all that the planner's guarantee of progress rests on.
"""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from scheduler_svc.core.plan import Gain
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.waiting import WaitingQueue


class Policy(Protocol):
    """One object for all workers of a scheduler process, so that what it counts is counted once."""

    preempts: ClassVar[bool] = False
    """A waiting sequence takes slot and blocks from running ones that yield to it."""

    steady: ClassVar[bool] = True
    """While nobody comes or goes, steps are alike, and nothing is counted: many may be taken at once."""

    def measure(self, group: SequenceGroup) -> float:
        """The lower, the older. Asked when a worker gets the group, whose limit is known by then."""
        return 0.0

    def queue(self) -> WaitingQueue:
        """The waiting line of one worker."""
        return WaitingQueue()

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        """Whether one that runs makes way for one that waits, if there is no room for both."""
        return running.age[0] > waiting.age[0]

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        """Running prefills, oldest first, in the order in which they take from a step's budget."""
        return sequences

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """A step's decodes, oldest first, in the order in which the worker is to compute them."""
        return sequences

    def began(self, group: SequenceGroup) -> None:
        """A group got its first slot."""
        return None

    def gained(self, gains: Iterable[Gain]) -> None:
        """Tokens were generated."""
        return None
