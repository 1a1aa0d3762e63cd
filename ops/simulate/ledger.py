"""The ledger of a simulated load: records every token, and gives the figures of the run."""

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
"""Number of times in a run that fairness is measured."""
MICROSECOND = SECOND // 10**6
PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class LiveRequest:
    """A request that has not ended."""

    asked: int
    """Time at which the request arrived. Picoseconds."""
    arrival: Arrival
    """The request as the load has it."""
    text: "array[int]"
    """The tokens of the prompt."""
    turns: tuple[Turn, ...]
    """Further questions of its conversation."""
    missing: int
    """Tokens of the answer that have not come yet."""
    latest: int = 0
    """Time of the newest token; 0: there is none. Picoseconds."""
    cut: int = 0
    """Tokens that were asked for and that the context has no room for."""

    @property
    def answered(self) -> int:
        """Tokens of the whole answer."""
        return self.arrival.output_tokens - self.cut


class Ledger:
    """The records of one run. All times that are passed in are picoseconds."""

    def __init__(self, requests: int, capacity: int) -> None:
        """`requests`: number of requests that will arrive. `capacity`: blocks of all workers' pools."""
        self.asked = self.ended = self.refused = 0
        """Requests that have arrived, that have ended, and that could never be served."""
        self.in_time = 0
        """Requests that ended within their timeout."""
        self.preempted = 0
        """Number of preemptions."""
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        """Tokens of ended requests' prompts, those of them that were cached, and all output tokens."""
        self.held = Curve(SECOND // 1000)
        """Blocks that running sequences hold, over time."""
        self.finished_at = 0
        """Time at which the last request ended."""
        self._capacity = capacity
        self._first = array("d")
        """Seconds to the first token of each request."""
        self._urgent = array("d")
        """Seconds to the first token of each request of priority 0 or lower, the earliest."""
        self._whole = array("d")
        self._gaps: Counter[int] = Counter()
        self._demand: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self._fairness: list[float] = []
        self._sample_every = -(-requests // FAIRNESS_SAMPLES)

    def ask(self, live: LiveRequest) -> None:
        """Record that a request has arrived."""
        self.asked += 1
        self._demand[live.arrival.tenant] += len(live.text) + live.missing

    def refuse(self, live: LiveRequest) -> None:
        """Record that a request can never be served."""
        self.refused += 1
        self._demand[live.arrival.tenant] -= len(live.text) + live.missing

    def fit(self, live: LiveRequest, longest: int) -> None:
        """Record that a request's prompt and answer have `longest` tokens at most."""
        live.cut = max(0, len(live.text) + live.missing - longest)
        live.missing -= live.cut
        self._demand[live.arrival.tenant] -= live.cut

    def token(self, live: LiveRequest, now: int) -> None:
        """Record that a request has gained a token. Tokens of one step come at once."""
        if live.latest:
            if now > live.latest:
                self._gaps[(now - live.latest) // MICROSECOND] += 1
        else:
            self._first.append((now - live.asked) / SECOND)
            if live.arrival.priority <= 0:
                self._urgent.append(self._first[-1])
        live.latest = now
        live.missing -= 1
        self.output_tokens += 1

    def tokens(self, lives: Sequence[LiveRequest], ends: Sequence[int]) -> None:
        """Record that each of `lives` has gained a token at each of the times `ends`."""
        for live in lives:
            self.token(live, ends[0])
            live.latest = ends[-1]
            live.missing -= len(ends) - 1
        for before, end in pairwise(ends):
            self._gaps[(end - before) // MICROSECOND] += len(lives)
        self.output_tokens += (len(ends) - 1) * len(lives)

    def end(self, live: LiveRequest, cached: int, now: int) -> None:
        """Record that a request has ended. `cached`: tokens of its prompt that were not computed.

        Raises `IntegrityError` if a token of its answer is missing.
        """
        if live.missing:
            raise IntegrityError(f"a request of {live.answered} tokens misses {live.missing}")
        self.ended += 1
        self.finished_at = now
        self.prompt_tokens += len(live.text)
        self.cached_tokens += cached
        self._whole.append((now - live.asked) / SECOND)
        self.in_time += self._whole[-1] <= live.arrival.timeout
        self._served[live.arrival.tenant] += len(live.text) + live.answered
        if self.ended % self._sample_every == 0:
            tenants = sorted(self._demand)
            self._fairness.append(
                fairness([self._demand[each] for each in tenants], [self._served[each] for each in tenants])
            )

    def summary(self) -> dict[str, object]:
        """Figures of the run. Their names have the units; rates are per second, shares are of all blocks."""
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
    """`PERCENTILES` of the counted values, times `scale`. Each is the least value that reaches its share."""
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
