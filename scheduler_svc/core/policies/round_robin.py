"""Everybody in turn."""

from heapq import heappush
from itertools import count

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.waiting import WaitingQueue

QUANTUM = 32
"""Tokens that a sequence gains before it has to make way for one that waits."""


class RoundRobin(Policy):
    """Time slices: after a quantum of tokens a sequence goes to the end of the line, if there is one.

    Its blocks stay in the prefix cache for as long as memory allows, so that taking it up again is cheap.
    Prefills take a step's budget in turns, too. Nobody starves: the line only ever moves on, and a sequence
    makes way for it only after it has gained a quantum.
    """

    preempts = True

    def __init__(self) -> None:
        self._turns = count()
        self._begins = 0

    def queue(self) -> WaitingQueue:
        return _Turns(self._turns)

    def yields(self, running: Sequence, waiting: Sequence) -> bool:
        return running.state is State.DECODE and len(running.tokens) - running.admitted_length >= QUANTUM

    def prefills(self, sequences: list[Sequence]) -> list[Sequence]:
        if len(sequences) < 2:
            return sequences
        self._begins += 1
        begin = self._begins % len(sequences)
        return sequences[begin:] + sequences[:begin]


class _Turns(WaitingQueue):
    """In the order in which sequences joined the line; one that was preempted has joined again."""

    def __init__(self, turns: "count[int]") -> None:
        super().__init__()
        self._turns = turns

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, ((next(self._turns), 0, 0), sequence))
