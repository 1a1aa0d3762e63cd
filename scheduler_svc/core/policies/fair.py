"""A fair share for every tenant: virtual token counters, after Sheng et al., Fairness in Serving Large
Language Models (OSDI 2024), section 4.

Each tenant has a counter of what was computed for it. Whoever waits and has the lowest is next. A tenant that
comes back is lifted to the lowest of those who wait: what it did not ask for it cannot claim later.
"""

from collections import Counter
from collections.abc import Iterable

from scheduler_svc.core.plan import Gain
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.waiting import WaitingQueue

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""What a token costs. One that is generated takes a row of its own; a prompt's share theirs."""

MAX_TENANTS = 10_000
"""Counters that are kept; of more, those of idle tenants go that were served least."""


class Fair(Policy):
    """Tenants share the work evenly, however much each of them asks; within one, first come, first served."""

    steady = False

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        """Sequences that wait for any worker. One that ended counts until the line has come to it."""
        self._left = 0.0
        """Counter of the tenant whose last sequence left the line most recently."""

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
        """What was computed for the tenant, weighed."""
        return self._served.get(tenant, 0.0)

    def joins(self, tenant: str) -> None:
        """A sequence of the tenant has joined a line."""
        if not self._waiting[tenant]:
            least = min(map(self.served, +self._waiting), default=self._left)
            if len(self._served) >= MAX_TENANTS:
                self._forget()
            self._served[tenant] = max(self.served(tenant), least)
        self._waiting[tenant] += 1

    def leaves(self, tenant: str, count: int = 1) -> None:
        """So many sequences of the tenant have left a line."""
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
    """A line for each tenant."""

    def __init__(self, shares: Fair) -> None:
        super().__init__()
        self._shares = shares
        self._lines: dict[str, WaitingQueue] = {}

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.group.request.tenant
        self._shares.joins(tenant)
        self._lines.setdefault(tenant, WaitingQueue()).push(sequence)

    def peek(self) -> Sequence | None:
        heads = []
        for tenant, line in list(self._lines.items()):
            before = len(line)
            head = line.peek()
            if ended := before - len(line):
                self._shares.leaves(tenant, ended)
            if head is None:
                del self._lines[tenant]
            else:
                heads.append((self._shares.served(tenant), head.age, head))
        return min(heads)[2] if heads else None

    def pop(self) -> Sequence:
        first = self.peek()
        assert first is not None
        tenant = first.group.request.tenant
        self._shares.leaves(tenant)
        return self._lines[tenant].pop()

    def sequences(self) -> list[Sequence]:
        """All that wait, oldest first."""
        return sorted(
            (sequence for line in self._lines.values() for sequence in line.sequences()),
            key=lambda sequence: sequence.age,
        )

    def drain(self) -> list[Sequence]:
        drained = self.sequences()
        for tenant, line in self._lines.items():
            self._shares.leaves(tenant, len(line))
        self._lines = {}
        return drained
