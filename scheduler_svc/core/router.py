"""Which worker a request goes to."""

from heapq import heapify, heappop, heappush

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

Entry = tuple[float, int, Scheduler]


class Router:
    """The workers in order of load, in a heap: among a thousand one is found as soon as among ten."""

    def __init__(self) -> None:
        self._entries: dict[Scheduler, Entry] = {}
        # Holds every entry of `_entries`, and some that are out of date: those are skipped when they come up.
        self._heap: list[Entry] = []
        self._joined = 0

    def add(self, scheduler: Scheduler) -> None:
        """A worker has joined."""
        self._joined += 1
        self._enter(scheduler, self._joined)

    def remove(self, scheduler: Scheduler) -> None:
        """A worker is lost."""
        del self._entries[scheduler]

    def review(self, scheduler: Scheduler) -> None:
        """A worker's load may have changed."""
        entry = self._entries.get(scheduler)
        if entry is not None and entry[0] != _load(scheduler):
            self._enter(scheduler, entry[1])

    def choose(self, group: SequenceGroup) -> Scheduler | None:
        """The least loaded of those that could hold the group's longest sequence; the first on a tie."""
        heap, too_small = self._heap, []
        chosen = None
        while heap and chosen is None:
            entry = heap[0]
            scheduler = entry[2]
            if self._entries.get(scheduler) is not entry:
                heappop(heap)
            elif group.limit > scheduler.limits.max_length:
                too_small.append(heappop(heap))
            else:
                chosen = scheduler
        for entry in too_small:
            heappush(heap, entry)
        return chosen

    def _enter(self, scheduler: Scheduler, joined: int) -> None:
        entry = self._entries[scheduler] = (_load(scheduler), joined, scheduler)
        if len(self._heap) < 2 * len(self._entries):
            heappush(self._heap, entry)
        else:  # half of it is out of date
            self._heap = list(self._entries.values())
            heapify(self._heap)


def _load(scheduler: Scheduler) -> float:
    return scheduler.unfinished / scheduler.slots
