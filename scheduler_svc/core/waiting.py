"""The queue of sequences that wait for a slot."""

from heapq import heappop, heappush

from scheduler_svc.core.sequence import Age, Sequence


class WaitingQueue:
    """Ordered by age, oldest first. A preempted sequence keeps its place."""

    def __init__(self) -> None:
        self._heap: list[tuple[Age, Sequence]] = []

    def __len__(self) -> int:
        """Number of entries. Sequences that ended while they waited count until they are at the head."""
        return len(self._heap)

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

    def drain(self) -> list[Sequence]:
        """Empty the queue; its sequences in order."""
        drained = self.sequences()
        self._heap = []
        return drained
