"""Whether a request may join the queue, and if not, when its client should ask again.

A full queue takes further requests of tenants that have less than their share of it, which is the limit
divided by the number of tenants that wait. So no tenant is refused because of what another one asks for. The
second tenant adds at most a half of the limit to a queue that the first has filled, the third a third, and so
on.
"""

from collections import deque
from math import ceil

from scheduler_svc.core.backlog import Waiting
from scheduler_svc.core.errors import TooMuchWaits

WINDOW_SECONDS = 30.0
"""Over how much time the queue's rate is measured."""
SAMPLE_SECONDS = 0.5
"""Least time between two measurements."""


class Admission:
    """Limits the queue, and measures how fast it moves."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        """Requests and prompt tokens that may wait; 0: any number."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._samples: deque[tuple[float, int]] = deque()
        """(time in seconds, tokens that had begun by then). All but the first are within the window."""

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return bool(self._max_requests or self._max_tokens)

    def due(self, now: float) -> bool:
        """Whether it is time for the next measurement. `now`: in seconds."""
        return self.limited and not (self._samples and now - self._samples[-1][0] < SAMPLE_SECONDS)

    def note(self, begun_tokens: int, now: float) -> None:
        """Take a measurement. `begun_tokens`: tokens that have left the queue so far. `now`: in seconds."""
        samples = self._samples
        samples.append((now, begun_tokens))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()

    def check(self, waiting: Waiting, tenant: str, prompt_tokens: int, now: float) -> None:
        """Raise `TooMuchWaits` if the queue has no room for a prompt of `prompt_tokens`.

        `waiting`: the queue. A tenant that has nothing there may add a prompt of any length: otherwise a
        prompt longer than the limit would never get in.
        """
        requests, tokens = waiting.of(tenant)
        if not requests:
            return
        too_many = 0 < self._max_requests <= min(waiting.requests, requests * waiting.tenants)
        longer = min(waiting.tokens + prompt_tokens, (tokens + prompt_tokens) * waiting.tenants)
        if too_many or 0 < self._max_tokens < longer:
            raise TooMuchWaits(self._seconds(waiting.begun_with(tokens), now))

    def _seconds(self, tokens: int, now: float) -> int:
        """How long it takes until `tokens` tokens have begun, at the rate of the window."""
        if len(self._samples) < 2:
            return 1
        (since, before), (_, begun) = self._samples[0], self._samples[-1]
        # If nothing has begun for a whole window, waiting takes at least as long again.
        seconds = tokens * (now - since) / (begun - before) if begun > before else now - since
        return max(1, ceil(seconds))
