"""The sequences that wait for a slot, in the order in which they are to get one."""

from heapq import heappop, heappush

from scheduler_svc.core.sequence import Age, Sequence


class WaitingQueue:
    """The oldest first; a preempted sequence keeps its place."""

    def __init__(self) -> None:
        self._heap: list[tuple[Age, Sequence]] = []

    def __len__(self) -> int:
        """How many there are; those that ended while they waited count until they are come to."""
        return len(self._heap)

    def push(self, sequence: Sequence) -> None:
        heappush(self._heap, (sequence.age, sequence))

    def peek(self) -> Sequence | None:
        """The next one to admit."""
        # One that ended while it waited is still in the heap: taking it out there would cost O(n).
        while self._heap and not self._heap[0][1].waits:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Take out what `peek` showed."""
        return heappop(self._heap)[1]

    def sequences(self) -> list[Sequence]:
        """All that wait, in order."""
        return [sequence for _, sequence in sorted(self._heap) if sequence.waits]

    def drain(self) -> list[Sequence]:
        """Take out everything, in order."""
        drained = self.sequences()
        self._heap = []
        return drained
