"""Sequences run in turns."""

from itertools import count

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.waiting import UserQueue

QUANTUM = 32
"""Tokens that a sequence gains in a turn at least, before it yields to one that waits."""


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
