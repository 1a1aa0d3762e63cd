"""Policies: which requests of one user of one tenant come first.

Between users and tenants a policy decides nothing: these share slots, memory and steps evenly (`shares.py`).

Every sequence has an age, (measure, arrival, index), which stays the same while it runs. The older comes
before the younger everywhere: in the queue, in memory and in a step's budget. Any measure gives a total
order, and the planner's guarantee of progress needs no more.
"""

from collections.abc import Callable
from itertools import count
from typing import ClassVar

from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.waiting import UserQueue

QUANTUM = 32
"""Tokens that a sequence gains in a turn of `RoundRobin` at least, before it yields to one that waits."""


class Policy:
    """First come, first served: no request of a user overtakes another one of the same user.

    Each worker has a policy of its own, which depends on nothing that other workers do.
    """

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


class Priority(Policy):
    """Lower numbers come first, and preempt higher ones. Equal numbers are first come, first served.

    The order is strict: higher numbers of a user wait for as long as lower ones of that user keep coming.
    """

    preempts = True

    def measure(self, group: SequenceGroup) -> float:
        return group.request.priority


class Shortest(Policy):
    """Requests with fewer tokens, prompt and answer together, begin earlier; none preempts another.

    An answer counts with the length that it may have. Each arrival counts as one token. So if a request may
    become k tokens longer than others, at most k of those that come later overtake it, and none starves.
    """

    def measure(self, group: SequenceGroup) -> float:
        return group.limit + group.arrival


class Deadline(Policy):
    """Earliest deadline first (Liu and Layland, Scheduling Algorithms for Multiprogramming, 1973, section 7).

    A request preempts those with later deadlines. Requests without a deadline come last.
    """

    preempts = True

    def measure(self, group: SequenceGroup) -> float:
        return group.request.deadline


class BlockCount(Policy):
    """First come, first served. A step's decodes are ordered by the number of their blocks.

    So a kernel that gives neighbouring rows to one group of threads lets no short row wait for a long one.
    """

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        return sorted(sequences, key=_blocks)


class RoundRobin(Policy):
    """Time slices: after its turn a sequence goes to the end of the queue, if others wait.

    Its blocks stay in the prefix cache while memory allows. Then its next turn begins with little to compute,
    and turns are short. When more sequences wait than memory has room for, all its tokens are computed again
    in each turn. So a turn also lasts until it has gained as many tokens as had to be computed to begin it:
    however many wait, turns compute no more tokens again than they gain. A sequence that is preempted for
    memory during its turn is the next to come back. Prefills take a step's budget in turns, too. No sequence
    starves, because each yields after its turn.
    """

    preempts = True

    def __init__(self) -> None:
        self._turns = count()
        self._begins = 0

    def measure(self, group: SequenceGroup) -> float:
        return next(self._turns)

    def queue(self) -> UserQueue:
        return _Turns(self._turns)

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        return running.state is State.DECODE and _turn_is_over(running)

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        if len(sequences) < 2:
            return sequences
        self._begins += 1
        begin = self._begins % len(sequences)
        return sequences[begin:] + sequences[:begin]


class _Turns(UserQueue):
    """Ordered by when sequences joined the queue; a sequence whose turn is over joins it again."""

    def __init__(self, turns: "count[int]") -> None:
        super().__init__()
        self._turns = turns

    def push(self, sequence: Sequence) -> None:
        if sequence.state is State.PREEMPTED and _turn_is_over(sequence):
            sequence.age = (next(self._turns), *sequence.age[1:])
        super().push(sequence)


def _turn_is_over(sequence: Sequence) -> bool:
    gained = sequence.output_tokens - sequence.admitted_output
    return gained >= max(QUANTUM, sequence.admission_cost)


def _blocks(sequence: Sequence) -> int:
    assert sequence.table is not None
    return len(sequence.table.blocks)


POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Policy,
    "priority": Priority,
    "shortest": Shortest,
    "round-robin": RoundRobin,
    "deadline": Deadline,
    "block-count": BlockCount,
}
"""By the value of the setting `policy`."""
