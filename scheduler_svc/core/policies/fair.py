"""A fair share for every tenant: virtual token counters, after Sheng et al., Fairness in Serving Large
Language Models (OSDI 2024), section 4.

Each tenant has a counter of the tokens that were computed for it. Of the tenants that wait, the one with the
lowest counter is next. When a tenant comes back after a pause, its counter is raised to the lowest of those
that wait: what it did not use it cannot claim later.
"""

from collections import Counter
from collections.abc import Iterable

from scheduler_svc.core.plan import Gain
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.waiting import WaitingQueue

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""What a token costs. A generated token takes a row of its own; prompt tokens share rows."""

MAX_TENANTS = 10_000
"""Counters that are kept. If there are more, those of idle tenants that were served least are dropped."""


class Fair(Policy):
    """Tenants get equal shares however much each asks for. Within a tenant: first come, first served."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        """Sequences of each tenant in all queues. One that ended counts until it is at its queue's head."""
        self._left = 0.0
        """Counter of the tenant whose last sequence left the queues most recently."""

    def queue(self) -> WaitingQueue:
        return _Shares(self)

    def began(self, group: SequenceGroup) -> None:
        request = group.request
        computed = len(request.prompt) - (group.cached_tokens or 0)
        self._charge(request.tenant, PROMPT_WEIGHT * computed)

    def gained(self, gains: Iterable[Gain]) -> None:
        for gain in gains:
            self._charge(gain.group.request.tenant, OUTPUT_WEIGHT)

    def served(self, tenant: str) -> float:
        """Weighted tokens that were computed for the tenant."""
        return self._served.get(tenant, 0.0)

    def joins(self, tenant: str) -> None:
        """A sequence of the tenant has joined a queue."""
        if not self._waiting[tenant]:
            least = min(map(self.served, +self._waiting), default=self._left)
            if len(self._served) >= MAX_TENANTS:
                self._forget()
            self._served[tenant] = max(self.served(tenant), least)
        self._waiting[tenant] += 1

    def leaves(self, tenant: str, count: int = 1) -> None:
        """`count` sequences of the tenant have left a queue."""
        self._waiting[tenant] -= count
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._left = self.served(tenant)

    def _charge(self, tenant: str, cost: float) -> None:
        self._served[tenant] = self._served.get(tenant, 0.0) + cost

    def _forget(self) -> None:
        idle = sorted((tenant for tenant in self._served if tenant not in self._waiting), key=self.served)
        for tenant in idle[: len(idle) // 2 + 1]:
            del self._served[tenant]


class _Shares(WaitingQueue):
    """A queue for each tenant."""

    def __init__(self, shares: Fair) -> None:
        super().__init__()
        self._shares = shares
        self._queues: dict[str, WaitingQueue] = {}

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.group.request.tenant
        self._shares.joins(tenant)
        self._queues.setdefault(tenant, WaitingQueue()).push(sequence)

    def peek(self) -> Sequence | None:
        heads = []
        for tenant, queue in list(self._queues.items()):
            before = len(queue)
            head = queue.peek()
            if ended := before - len(queue):
                self._shares.leaves(tenant, ended)
            if head is None:
                del self._queues[tenant]
            else:
                heads.append((self._shares.served(tenant), head.age, head))
        return min(heads)[2] if heads else None

    def pop(self) -> Sequence:
        first = self.peek()
        assert first is not None
        tenant = first.group.request.tenant
        self._shares.leaves(tenant)
        return self._queues[tenant].pop()

    def sequences(self) -> list[Sequence]:
        """All sequences that wait, oldest first."""
        return sorted(
            (sequence for queue in self._queues.values() for sequence in queue.sequences()),
            key=lambda sequence: sequence.age,
        )

    def drain(self) -> list[Sequence]:
        drained = self.sequences()
        for tenant, queue in self._queues.items():
            self._shares.leaves(tenant, len(queue))
        self._queues = {}
        return drained
