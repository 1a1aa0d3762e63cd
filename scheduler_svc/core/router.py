"""Which worker a request goes to: where most of its prompt is cached, weighed against load.

    cost = load, in full batches + prompt tokens to compute, in full steps

So a cached prompt that fills a step outweighs one full batch of other requests, and a single cached block
outweighs almost nothing.
"""

from collections.abc import Iterable, Iterator

from scheduler_svc.core.batch import PartialBlock
from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.lazy_heap import LazyHeap
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

MAX_PREFIXES = 10_000
"""Beginnings of prompts whose workers are remembered; the latest are kept."""

AT_ONCE = 16
"""Blocks behind the first that are named at once, until one comes that no worker knows."""


class Router:
    """Keeps the workers in a heap by load, so that choosing takes as long among a thousand as among ten."""

    def __init__(self) -> None:
        self._workers: LazyHeap[Scheduler] = LazyHeap()
        """By load, and the order in which they joined."""
        self._joined = 0
        # Workers that were given prompts, by their `_Prompt.beginning`: only these are asked.
        self._had: dict[bytes, dict[Scheduler, None]] = {}

    def add(self, scheduler: Scheduler) -> None:
        """Add a worker."""
        self._joined += 1
        self._workers.enter(scheduler, (_load(scheduler), self._joined))

    def remove(self, scheduler: Scheduler) -> None:
        """Remove a worker."""
        self._workers.leave(scheduler)
        for had in self._had.values():
            had.pop(scheduler, None)

    def review(self, scheduler: Scheduler) -> None:
        """Take note that a worker's load may have changed."""
        key = self._workers.key_of(scheduler)
        if key is not None and key[0] != _load(scheduler):
            self._workers.enter(scheduler, (_load(scheduler), key[1]))

    def choose(self, group: SequenceGroup) -> Scheduler | None:
        """The cheapest worker that can hold the group's longest sequence; the least loaded on a tie."""
        request, limit, fingerprint = group.request, group.limit, group.fingerprint
        chosen = self._workers.first(lambda each: each.limits.can_hold(request, limit, fingerprint))
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
            if scheduler is least_loaded or _load(scheduler) >= least:  # even if it has all of the prompt
                continue
            limits = scheduler.limits
            fits = limits.can_hold(group.request, group.limit, group.fingerprint)
            if fits and limits.block_size == least_loaded.limits.block_size:
                cost = prompt.cost(scheduler)
                if cost < least:
                    chosen, least = scheduler, cost
        return chosen


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
