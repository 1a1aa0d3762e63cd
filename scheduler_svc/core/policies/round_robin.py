"""Everybody in turn."""

from itertools import count

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.waiting import WaitingQueue

QUANTUM = 32
"""Tokens that a turn brings a sequence at least, before it has to make way for one that waits."""


class RoundRobin(Policy):
    """Time slices: after its turn a sequence goes to the end of the line, if there is one.

    Its blocks stay in the prefix cache for as long as memory allows: then taking it up again is cheap, and
    turns are short. When more wait than memory has room for, all that it knows is computed anew in each
    turn. So a turn brings as many tokens as had to be computed to begin it: however many wait, whole turns
    compute no more again than they gain. One that loses its memory during its turn is the next to come back.
    Prefills take a step's budget in turns, too. Nobody starves: the line only ever moves on, and a sequence
    makes way for it only after its turn.
    """

    preempts = True

    def __init__(self) -> None:
        self._turns = count()
        self._begins = 0

    def measure(self, group: SequenceGroup) -> float:
        return next(self._turns)

    def queue(self) -> WaitingQueue:
        return _Turns(self._turns)

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        return running.state is State.DECODE and _turn_is_over(running)

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        if len(sequences) < 2:
            return sequences
        self._begins += 1
        begin = self._begins % len(sequences)
        return sequences[begin:] + sequences[:begin]


class _Turns(WaitingQueue):
    """In the order in which sequences joined the line; one whose turn is over joins again."""

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
