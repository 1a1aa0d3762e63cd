"""Loads that are drawn: the same seed draws the same requests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from ops.simulate.trace import Arrival, Turn

BURST = 32
"""Requests that come at once in a burst."""
TURNS = 4
"""Questions of a chat."""
THINKING = 10.0
"""Seconds between an answer and the next question of a chat, in the mean."""
SYSTEM_PROMPTS = 8
"""Different ones; like the tenants, the first comes most often."""
SYSTEM_TOKENS = 512
FLOOD = 10
"""How much more often than each other tenant the first one asks in a flood."""
PRIORITIES = 3
TIMEOUTS = (1.0, 30.0)
"""Least and most seconds."""
KINDS = ("poisson", "bursts", "chats", "shared", "flood")


@dataclass(frozen=True)
class Load:
    """What is drawn."""

    kind: str = "poisson"
    """poisson: each by itself; bursts: many at once; chats: questions that follow answers; shared: each by
    itself, behind one of a few system prompts; flood: one tenant asks much more often than the others."""
    requests: int = 1000
    rate: float = 10.0
    """Requests a second, in the mean."""
    prompt_lengths: tuple[int, ...] = (32, 128, 512)
    """Tokens that are a prompt's own; taken in turn."""
    output_lengths: tuple[int, int] = (64, 64)
    """Least and most tokens of an answer, drawn evenly between them."""
    tenants: int = 4
    """How many share the load: the n-th asks 1/n as often as the first, but in a flood."""
    seed: int = 0

    def arrivals(self) -> Iterator[Arrival]:
        """As many requests as there are to be, in order of time; further questions of a chat count.

        Each but those of chats has a priority and a timeout, drawn evenly, for the policies that want them.
        """
        chance, urgency = Random(self.seed), Random(f"urgency {self.seed}")
        together = {"bursts": BURST, "chats": TURNS}.get(self.kind, 1)
        tenants = [f"tenant-{number}" for number in range(1, self.tenants + 1)]
        weights = [1 / number for number in range(1, self.tenants + 1)]
        if self.kind == "flood":
            weights = [FLOOD, *[1] * (self.tenants - 1)]
        at, drawn = 0.0, 0
        while drawn < self.requests:
            at += chance.expovariate(self.rate / together)
            count = min(together, self.requests - drawn)
            if self.kind == "chats":
                yield self._chat(chance, drawn, count, at, chance.choices(tenants, weights)[0])
            else:
                for number in range(drawn, drawn + count):
                    arrival = self._single(chance, number, at, chance.choices(tenants, weights)[0])
                    priority, timeout = urgency.randrange(PRIORITIES), urgency.uniform(*TIMEOUTS)
                    yield replace(arrival, priority=priority, timeout=timeout)
            drawn += count

    def _single(self, chance: Random, number: int, at: float, tenant: str) -> Arrival:
        own, output = self._lengths(chance, number)
        if self.kind != "shared":
            return Arrival(at, own, output, tenant=tenant)
        ranks = range(1, SYSTEM_PROMPTS + 1)
        prefix = chance.choices(ranks, [1 / rank for rank in ranks])[0]
        return Arrival(at, SYSTEM_TOKENS + own, output, f"system-{prefix}", SYSTEM_TOKENS, tenant)

    def _chat(self, chance: Random, number: int, questions: int, at: float, tenant: str) -> Arrival:
        first, *later = (self._lengths(chance, number + turn) for turn in range(questions))
        turns = tuple(Turn(*lengths, chance.expovariate(1 / THINKING)) for lengths in later)
        return Arrival(at, *first, tenant=tenant, turns=turns)

    def _lengths(self, chance: Random, number: int) -> tuple[int, int]:
        return self.prompt_lengths[number % len(self.prompt_lengths)], chance.randint(*self.output_lengths)
