"""Which worker a request goes to: where most of its prompt is cached, weighed against load.

What a request costs a worker is its load, in batches, plus what is to be computed of the prompt, in steps:
a prompt that fills a step is worth a detour to a worker with a batch more to do, a single block hardly any.
"""

from heapq import heapify, heappop, heappush

from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

MAX_PREFIXES = 10_000
"""First blocks of prompts that are remembered with the workers that had them; the latest are kept."""

Entry = tuple[float, int, Scheduler]


class Router:
    """The workers in order of load, in a heap: among a thousand one is found as soon as among ten."""

    def __init__(self) -> None:
        self._entries: dict[Scheduler, Entry] = {}
        # Holds every entry of `_entries`, and some that are out of date: those are skipped when they come up.
        self._heap: list[Entry] = []
        self._joined = 0
        # By the name of a prompt's first block, who was given such prompts: only they are asked.
        self._had: dict[bytes, dict[Scheduler, None]] = {}

    def add(self, scheduler: Scheduler) -> None:
        """A worker has joined."""
        self._joined += 1
        self._enter(scheduler, self._joined)

    def remove(self, scheduler: Scheduler) -> None:
        """A worker is lost."""
        del self._entries[scheduler]
        for had in self._had.values():
            had.pop(scheduler, None)

    def review(self, scheduler: Scheduler) -> None:
        """A worker's load may have changed."""
        entry = self._entries.get(scheduler)
        if entry is not None and entry[0] != _load(scheduler):
            self._enter(scheduler, entry[1])

    def choose(self, group: SequenceGroup) -> Scheduler | None:
        """The cheapest of those that could hold the group's longest sequence; the least loaded on a tie."""
        chosen = self._least_loaded(group)
        if chosen is None or len(self._entries) == 1:
            return chosen
        names = _names(group, chosen.limits.block_size)
        if not (names and group.request.takes_prefixes):
            return chosen
        had = self._had.pop(names[0], {})
        least = _cost(chosen, names)
        for scheduler in had:
            limits = scheduler.limits
            if limits.can_hold(group.request, group.limit) and limits.block_size == chosen.limits.block_size:
                cost = _cost(scheduler, names)
                if cost < least:
                    chosen, least = scheduler, cost
        had[chosen] = None
        self._had[names[0]] = had
        if len(self._had) > MAX_PREFIXES:
            del self._had[next(iter(self._had))]
        return chosen

    def _least_loaded(self, group: SequenceGroup) -> Scheduler | None:
        """The least loaded of those that could hold the group's longest sequence; the first on a tie."""
        heap, too_small = self._heap, []
        chosen = None
        while heap and chosen is None:
            entry = heap[0]
            scheduler = entry[2]
            if self._entries.get(scheduler) is not entry:
                heappop(heap)
            elif not scheduler.limits.can_hold(group.request, group.limit):
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


def _names(group: SequenceGroup, block_size: int) -> list[bytes]:
    """Of all blocks that the group's first sequence could find cached."""
    leader, request = group.alive()[0], group.request
    count = (len(leader.tokens) - 1) // block_size
    extend_chain(leader.chain, root(request.salt), leader.tokens, count, block_size)
    return leader.chain[:count]


def _cost(scheduler: Scheduler, names: list[bytes]) -> float:
    missing = len(names) * scheduler.limits.block_size - scheduler.cached_tokens(names)
    return _load(scheduler) + missing / scheduler.limits.max_step_tokens


def _load(scheduler: Scheduler) -> float:
    return scheduler.unfinished / scheduler.slots
