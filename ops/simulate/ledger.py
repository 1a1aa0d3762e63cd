"""What came of a simulated load: every token is booked here when it is there."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ops.simulate.cost import SECOND
from ops.simulate.curve import Curve
from ops.simulate.fairness import fairness
from ops.simulate.trace import Arrival, Turn
from scheduler_svc.core.errors import IntegrityError

FAIRNESS_SAMPLES = 64
"""How often in a run fairness is looked at."""
MICROSECOND = SECOND // 10**6
PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class LiveRequest:
    """A request on its way. Times in picoseconds."""

    asked: int
    arrival: Arrival
    text: "array[int]"
    """The prompt."""
    turns: tuple[Turn, ...]
    """What is asked after it."""
    missing: int
    """Tokens of the answer that are yet to come."""
    latest: int = 0
    """When the newest token came."""


class Ledger:
    """Books of one run."""

    def __init__(self, requests: int, capacity: int) -> None:
        """`requests`: how many are about to come; `capacity`: blocks of all workers."""
        self.asked = self.ended = self.in_time = self.refused = self.preempted = 0
        """Requests; in time: those that ended within their timeout; preempted counts how often."""
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.held = Curve(SECOND // 1000)
        """Blocks held by running sequences."""
        self.finished_at = 0
        self._capacity = capacity
        self._first = array("d")
        self._urgent = array("d")
        """As `_first`, of those that no priority comes before."""
        self._whole = array("d")
        self._gaps: Counter[int] = Counter()
        self._demand: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self._fairness: list[float] = []
        self._sample_every = -(-requests // FAIRNESS_SAMPLES)

    def ask(self, live: LiveRequest) -> None:
        """A request has come."""
        self.asked += 1
        self._demand[live.arrival.tenant] += len(live.text) + live.missing

    def refuse(self, live: LiveRequest) -> None:
        """It could never be served."""
        self.refused += 1
        self._demand[live.arrival.tenant] -= len(live.text) + live.missing

    def token(self, live: LiveRequest, now: int) -> None:
        """A request has gained a token."""
        if live.latest:
            self._gaps[(now - live.latest) // MICROSECOND] += 1
        else:
            self._first.append((now - live.asked) / SECOND)
            if live.arrival.priority <= 0:
                self._urgent.append(self._first[-1])
        live.latest = now
        live.missing -= 1
        self.output_tokens += 1

    def tokens(self, lives: Sequence[LiveRequest], ends: Sequence[int]) -> None:
        """Each of these requests has gained a token at each of these times."""
        for live in lives:
            self.token(live, ends[0])
            live.latest = ends[-1]
            live.missing -= len(ends) - 1
        for before, end in pairwise(ends):
            self._gaps[(end - before) // MICROSECOND] += len(lives)
        self.output_tokens += (len(ends) - 1) * len(lives)

    def end(self, live: LiveRequest, cached: int, now: int) -> None:
        """A request has ended; `cached` tokens of its prompt had not to be computed.

        Raises `IntegrityError` if it has not had every token.
        """
        if live.missing:
            raise IntegrityError(f"a request of {live.arrival.output_tokens} tokens misses {live.missing}")
        self.ended += 1
        self.finished_at = now
        self.prompt_tokens += len(live.text)
        self.cached_tokens += cached
        self._whole.append((now - live.asked) / SECOND)
        self.in_time += self._whole[-1] <= live.arrival.timeout
        self._served[live.arrival.tenant] += len(live.text) + live.arrival.output_tokens
        if self.ended % self._sample_every == 0:
            tenants = sorted(self._demand)
            self._fairness.append(
                fairness([self._demand[each] for each in tenants], [self._served[each] for each in tenants])
            )

    def summary(self) -> dict[str, object]:
        """Figures of the run. Times in milliseconds, rates a second; blocks as shares of what there is."""
        seconds = self.finished_at / SECOND
        held = [each / self._capacity for each in self.held.means(self.finished_at)]
        return {
            "requests": self.asked,
            "refused": self.refused,
            "preempted": self.preempted,
            "seconds": round(seconds, 6),
            "output_tokens": self.output_tokens,
            "output_rate": round(self.output_tokens / seconds, 3) if seconds else 0.0,
            "cached_share": round(self.cached_tokens / max(1, self.prompt_tokens), 6),
            "in_time_share": round(self.in_time / max(1, self.ended), 6),
            "first_token_ms": _percentiles(Counter(self._first), 1000),
            "urgent_first_token_ms": _percentiles(Counter(self._urgent), 1000),
            "between_tokens_ms": _percentiles(self._gaps, 1e-3),
            "end_to_end_ms": _percentiles(Counter(self._whole), 1000),
            "fairness": round(sum(self._fairness) / max(1, len(self._fairness)), 6),
            "held_share": [round(each, 6) for each in held],
            "held_share_seconds": self.held.width / SECOND,
        }


def _percentiles(counted: Counter[int] | Counter[float], scale: float) -> dict[str, float]:
    """Percentiles of the counted values, times `scale`: for each share the least value that reaches it."""
    ordered: Iterable[tuple[float, int]] = sorted(counted.items())
    due = {f"p{share}": counted.total() * share / 100 for share in PERCENTILES}
    found: dict[str, float] = {}
    seen = 0
    for value, count in ordered:
        seen += count
        for name, wanted in due.items():
            if name not in found and seen >= wanted:
                found[name] = round(value * scale, 3)
    return found
