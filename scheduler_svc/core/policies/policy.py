"""What a policy may decide. What it does not override is as in `fcfs`.

A policy orders the requests of one user of one tenant. Between users and tenants it decides nothing: these
share slots, memory and steps evenly (`shares.py`).

Every sequence has an age, (measure, arrival, index), which stays the same while it runs. The older comes
before the younger everywhere: in the queue, in memory and in a step's budget. Any measure gives a total
order, and the planner's guarantee of progress needs no more.
"""

from typing import ClassVar, Protocol

from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.waiting import UserQueue


class Policy(Protocol):
    """A policy. Each worker has one of its own, which depends on nothing that other workers do."""

    preempts: ClassVar[bool] = False
    """Whether a waiting sequence may preempt running ones of the same user that yield to it."""

    def measure(self, group: SequenceGroup) -> float:
        """A group's measure: the lower, the older. Asked when a worker gets the group, whose limit is set."""
        return 0.0

    def queue(self) -> UserQueue:
        """A new queue, for one user on one worker."""
        return UserQueue()

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        """Whether a running sequence may be preempted for a waiting one, if there is no room for both."""
        return running.age[0] > waiting.age[0]

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        """The order in which running prefills, given oldest first, take from a step's budget."""
        return sequences

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        """The order in which the worker computes a step's decodes, given oldest first."""
        return sequences
