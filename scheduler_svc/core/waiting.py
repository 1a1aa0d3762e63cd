"""The queue of sequences that wait for a slot."""

from collections.abc import Callable
from heapq import heappop, heappush

from scheduler_svc.core.account import Account
from scheduler_svc.core.sequence import Age, Sequence


class UserQueue:
    """Sequences of one user, ordered by age, oldest first. A preempted sequence keeps its place."""

    def __init__(self) -> None:
        self._heap: list[tuple[Age, Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.age, sequence))

    def peek(self) -> Sequence | None:
        """The next sequence to admit; None if none waits."""
        # A sequence that ended while it waited is still in the heap: removing it there would cost O(n).
        while self._heap and not self._heap[0][1].waits:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Remove and return the sequence that `peek` showed."""
        return heappop(self._heap)[1]

    def sequences(self) -> list[Sequence]:
        """All sequences that wait, in order."""
        return [sequence for _, sequence in sorted(self._heap) if sequence.waits]


class WaitingQueue:
    """A queue for each user. The tenant with fewest slots comes first, then its user with fewest."""

    def __init__(self, queue: Callable[[], UserQueue]) -> None:
        """`queue`: makes an empty queue for one user."""
        self._queue = queue
        self._queues: dict[Account, UserQueue] = {}

    def push(self, sequence: Sequence) -> None:
        account = sequence.group.account
        queue = self._queues.get(account)
        if queue is None:
            queue = self._queues[account] = self._queue()
        queue.push(sequence)

    def peek(self) -> Sequence | None:
        """The next sequence to admit; None if none waits."""
        if len(self._queues) == 1:
            for queue in self._queues.values():
                return queue.peek()
        return min(self._heads(), key=_claim, default=None)

    def pop(self) -> Sequence:
        """Remove and return the sequence that `peek` shows."""
        first = self.peek()
        assert first is not None
        return self._queues[first.group.account].pop()

    def heads(self) -> list[Sequence]:
        """The next sequence of each user that waits, in the order in which they would be admitted."""
        return sorted(self._heads(), key=_claim)

    def sequences(self) -> list[Sequence]:
        """All sequences that wait, oldest first."""
        waiting = [sequence for queue in self._queues.values() for sequence in queue.sequences()]
        return sorted(waiting, key=lambda sequence: sequence.age)

    def drain(self) -> list[Sequence]:
        """Empty the queue; its sequences, oldest first."""
        drained = self.sequences()
        self._queues = {}
        return drained

    def _heads(self) -> list[Sequence]:
        heads = []
        for account, queue in list(self._queues.items()):
            head = queue.peek()
            if head is None:
                del self._queues[account]
            else:
                heads.append(head)
        return heads


def _claim(sequence: Sequence) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    user = sequence.group.account
    return user.owner.claim, user.claim
