"""Which worker a request goes to: where most of its prompt is cached, weighed against load.

    cost = load, in full batches + prompt tokens to compute, in full steps

So a cached prompt that fills a step outweighs one full batch of other requests, and a single cached block
outweighs almost nothing.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from scheduler_svc.core.batch import PartialBlock
from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

MAX_PREFIXES = 10_000
"""Beginnings of prompts whose workers are remembered; the latest are kept."""

AT_ONCE = 16
"""Blocks behind the first that are named at once, until one comes that no worker knows."""

Entry = tuple[float, int, Scheduler]
"""(load, order of joining, worker)."""


class Router:
    """Keeps the workers in a heap by load, so that choosing takes as long among a thousand as among ten."""

    def __init__(self) -> None:
        self._entries: dict[Scheduler, Entry] = {}
        # Holds every entry of `_entries`, and outdated ones, which are skipped when they come up.
        self._heap: list[Entry] = []
        self._joined = 0
        # Workers that were given prompts, by their `_Prompt.beginning`: only these are asked.
        self._had: dict[bytes, dict[Scheduler, None]] = {}

    def add(self, scheduler: Scheduler) -> None:
        """Add a worker."""
        self._joined += 1
        self._enter(scheduler, self._joined)

    def remove(self, scheduler: Scheduler) -> None:
        """Remove a worker."""
        del self._entries[scheduler]
        for had in self._had.values():
            had.pop(scheduler, None)

    def review(self, scheduler: Scheduler) -> None:
        """Take note that a worker's load may have changed."""
        entry = self._entries.get(scheduler)
        if entry is not None and entry[0] != _load(scheduler):
            self._enter(scheduler, entry[1])

    def choose(self, group: SequenceGroup) -> Scheduler | None:
        """The cheapest worker that can hold the group's longest sequence; the least loaded on a tie."""
        chosen = self._least_loaded(group)
        if chosen is None or not group.most_cached:
            return chosen
        prompt = _Prompt(group, chosen.limits)
        if prompt.beginning is None:
            return chosen
        had = self._had.pop(prompt.beginning, {})
        if had.keys() - {chosen}:
            chosen = self._cheapest(group, prompt, chosen, had)
        had[chosen] = None
        self._had[prompt.beginning] = had
        if len(self._had) > MAX_PREFIXES:
            del self._had[next(iter(self._had))]
        return chosen

    def _cheapest(
        self, group: SequenceGroup, prompt: "_Prompt", least_loaded: Scheduler, had: Iterable[Scheduler]
    ) -> Scheduler:
        """The cheapest of the least loaded worker and of those that have `had` a prompt that begins so."""
        chosen, least = least_loaded, prompt.cost(least_loaded)
        for scheduler in had:
            limits = scheduler.limits
            fits = limits.can_hold(group.request, group.limit, group.fingerprint)
            if fits and limits.block_size == least_loaded.limits.block_size:
                cost = prompt.cost(scheduler)
                if cost < least:
                    chosen, least = scheduler, cost
        return chosen

    def _least_loaded(self, group: SequenceGroup) -> Scheduler | None:
        """The least loaded worker that can hold the group's longest sequence; the first on a tie."""
        heap, too_small = self._heap, []
        chosen = None
        while heap and chosen is None:
            entry = heap[0]
            scheduler = entry[2]
            if self._entries.get(scheduler) is not entry:
                heappop(heap)
            elif not scheduler.limits.can_hold(group.request, group.limit, group.fingerprint):
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
        else:  # half of its entries are outdated
            self._heap = list(self._entries.values())
            heapify(self._heap)


class _Prompt:
    """What is known of a group's longest sequence, and what workers have of it."""

    def __init__(self, group: SequenceGroup, limits: WorkerLimits) -> None:
        """`limits`: of a worker with the same size of blocks as all that are asked."""
        self._leader, self._limits = group.alive()[0], limits
        self._partial: dict[int, list[PartialBlock]] = {}
        partial = [each.name for each in self._partial_behind(0)[-1:]]
        self.beginning = next(iter(partial or self._names()), None)
        """The shortest name that a worker may know: of the first block, as far as the first message fills it.
        None: there is none."""

    def cost(self, scheduler: Scheduler) -> float:
        """What the group costs this worker."""
        missing = len(self._leader.tokens) - scheduler.cached_tokens(self._names(), self._partial_behind)
        return _load(scheduler) + missing / scheduler.limits.max_step_tokens

    def _names(self) -> Iterator[bytes]:
        """Names of its full blocks, from the head on. To name all blocks of a long prompt takes milliseconds,
        and of most no worker knows more than the first few."""
        tokens, chain, size = self._leader.tokens, self._leader.chain, self._limits.block_size
        request, blocks = self._leader.group.request, (len(tokens) - 1) // self._limits.block_size
        start = root(request.salt, request.adapter)
        for number in range(blocks):
            if number == len(chain):
                more = min(blocks, number + AT_ONCE) if number else 1
                extend_chain(chain, start, tokens, more, size, request.images)
            yield chain[number]

    def _partial_behind(self, full: int) -> list[PartialBlock]:
        """See `partial_blocks.possible`."""
        if full not in self._partial:
            self._partial[full] = partial_blocks.possible(self._limits, self._leader, full)
        return self._partial[full]


def _load(scheduler: Scheduler) -> float:
    return scheduler.unfinished / scheduler.slots
