"""What a policy may decide. What it does not override is as in `fcfs`.

Every sequence has an age, (measure, arrival, index), which stays the same while it runs. The older comes
before the younger everywhere: in the queue, in memory and in a step's budget. Any measure gives a total
order, and the planner's guarantee of progress needs no more.
"""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from scheduler_svc.core.plan import Gain
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.waiting import WaitingQueue


class Policy(Protocol):
    """A policy. One object serves all workers of a scheduler process, so that it counts over all of them."""

    preempts: ClassVar[bool] = False
    """Whether a waiting sequence may preempt running ones that yield to it."""

    def measure(self, group: SequenceGroup) -> float:
        """A group's measure: the lower, the older. Asked when a worker gets the group, whose limit is set."""
        return 0.0

    def queue(self) -> WaitingQueue:
        """A new queue, for one worker."""
        return WaitingQueue()

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        """Whether a running sequence may be preempted for a waiting one, if there is no room for both."""
        return running.age[0] > waiting.age[0]

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        """The order in which running prefills, given oldest first, take from a step's budget."""
        return sequences

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """The order in which the worker computes a step's decodes, given oldest first."""
        return sequences

    def began(self, group: SequenceGroup) -> None:
        """Take note that a group got its first slot."""
        return None

    def gained(self, gains: Iterable[Gain]) -> None:
        """Take note of generated tokens."""
        return None
