"""The queue of sequences that wait for a slot.

    all tenants ─┬─ tenant ─┬─ user      heap of sequences by age
                 │          └─ user
                 └─ tenant ─── user      an account has a heap of its members that wait, by claim

The entry of a sequence that has ended stays in its heap until it comes up, or until half of the heap is such
entries. So to add or take a sequence costs the logarithm of how many wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from scheduler_svc.core.account import Account, Claim
from scheduler_svc.core.errors import IntegrityError
from scheduler_svc.core.sequence import Age, Sequence

FEW = 64
"""Sequences that a user's queue may have at least before those that have ended are removed."""


class UserQueue:
    """Sequences of one user, ordered by age, oldest first. A preempted sequence keeps its place."""

    def __init__(self) -> None:
        self._heap: list[tuple[Age, Sequence]] = []
        self._most = FEW

    def push(self, sequence: Sequence) -> None:
        if len(self._heap) >= self._most:  # behind one that finds no room, others come and give up
            self._heap = [each for each in self._heap if each[1].waits]
            heapify(self._heap)
            self._most = max(FEW, 2 * len(self._heap))
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

    def __init__(self, queue: Callable[[], UserQueue], tenants: Account) -> None:
        """`queue`: makes an empty queue for one user. `tenants`: the account of all tenants."""
        self._queue = queue
        self._tenants = tenants
        self._queues: OrderedDict[Account, UserQueue] = OrderedDict()

    def push(self, sequence: Sequence) -> None:
        """Add a sequence. Nothing happens if it has ended: its user may have left."""
        if not sequence.waits:
            return
        user = sequence.group.account
        queue = self._queues.get(user)
        if queue is None:
            queue = self._queues[user] = self._queue()
            user.owner.waiting.enter(user, user.claim)
            self._tenants.waiting.enter(user.owner, user.owner.claim)
        elif queue.peek() is None:  # it is here only because nobody has looked
            self._queues.move_to_end(user)
        queue.push(sequence)

    def peek(self) -> Sequence | None:
        """The next sequence to admit; None if none waits."""
        while (tenant := self._tenants.waiting.first()) is not None:
            if (head := self._head(tenant)) is not None:
                return head
        return None

    def pop(self) -> Sequence:
        """Remove and return the sequence that `peek` shows."""
        first = self.peek()
        assert first is not None
        return self._queues[first.group.account].pop()

    def heads(self) -> list[Sequence]:
        """The next sequence to admit, and then the next one of each other tenant that has slots, in order."""
        first = self.peek()
        if first is None:
            return []
        others = (each for each in self._tenants.seated if each is not first.group.account.owner)
        waiting = (self._head(each) for each in others if each in self._tenants.waiting)
        return [first, *sorted((head for head in waiting if head is not None), key=_claim)]

    def in_turn(self) -> Sequence | None:
        """The next sequence of one user; of the next user with each call. Users are in the order in which
        they began to wait."""
        while self._queues:
            user, queue = next(iter(self._queues.items()))
            if (head := queue.peek()) is not None:
                self._queues.move_to_end(user)
                return head
            self.leave(user)
        return None

    def leave(self, user: Account) -> None:
        """No sequence of the user waits any more."""
        if self._queues.pop(user, None) is not None:
            user.owner.waiting.leave(user)
            if not user.owner.waiting:
                self._tenants.waiting.leave(user.owner)

    def sequences(self) -> list[Sequence]:
        """All sequences that wait, oldest first."""
        waiting = [sequence for queue in self._queues.values() for sequence in queue.sequences()]
        return sorted(waiting, key=lambda sequence: sequence.age)

    def drain(self) -> list[Sequence]:
        """Empty the queue; its sequences, oldest first."""
        drained = self.sequences()
        for user in list(self._queues):
            self.leave(user)
        return drained

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless the next one is that of the lowest claim."""
        heads = [head for queue in self._queues.values() if (head := queue.peek()) is not None]
        if self.peek() is not min(heads, key=_claim, default=None):
            raise IntegrityError("the next one that waits is not that of the lowest claim")

    def _head(self, tenant: Account) -> Sequence | None:
        """A tenant's next sequence. None if none waits; then the tenant leaves."""
        while (user := tenant.waiting.first()) is not None:
            if (head := self._queues[user].peek()) is not None:
                return head
            self.leave(user)
        return None


def _claim(sequence: Sequence) -> tuple[Claim, Claim]:
    user = sequence.group.account
    return user.owner.claim, user.claim
