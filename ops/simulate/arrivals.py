"""Random loads. The same seed gives the same requests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from ops.simulate.trace import Arrival, Turn

BURST = 32
"""Requests of a burst, which arrive at the same time."""
TURNS = 4
"""Questions of a chat."""
THINKING = 10.0
"""Mean seconds between an answer and the next question of a chat."""
SYSTEM_PROMPTS = 8
"""Number of system prompts. The n-th is used 1/n as often as the first."""
SYSTEM_TOKENS = 512
"""Tokens of a system prompt."""
FLOOD = 10
"""Number of requests of the first tenant in a flood for each request of another tenant."""
PRIORITIES = 3
"""Number of priorities: 0 to 2."""
TIMEOUTS = (1.0, 30.0)
"""Least and greatest timeout. Seconds."""
KINDS = ("poisson", "bursts", "chats", "shared", "flood")


@dataclass(frozen=True)
class Load:
    """Parameters of a random load."""

    kind: str = "poisson"
    """poisson: single requests. bursts: many requests at once. chats: questions that follow answers. shared:
    single requests that begin with one of a few system prompts. flood: single requests, most of them of one
    tenant."""
    requests: int = 1000
    """Number of requests, all questions of chats included."""
    rate: float = 10.0
    """Mean number of requests per second."""
    prompt_lengths: tuple[int, ...] = (32, 128, 512)
    """Tokens of a prompt without its system prompt, taken in turn."""
    output_lengths: tuple[int, int] = (64, 64)
    """Least and greatest number of an answer's tokens. Lengths are uniform between the two."""
    tenants: int = 4
    """Number of tenants. The n-th asks 1/n as often as the first, except in a flood."""
    seed: int = 0
    """Seed of all random numbers."""

    def arrivals(self) -> Iterator[Arrival]:
        """The requests in order of time. An arrival of a chat has all of the chat's questions.

        Except in chats each request has a uniformly random priority and timeout, for policies that use them.
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
