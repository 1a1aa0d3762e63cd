"""Whether a request may join those that wait, and if not, for how long there is no use in asking again."""

from collections import deque
from math import ceil

from scheduler_svc.core.errors import TooMuchWaits

WINDOW_SECONDS = 30.0
"""The pace at which the line moves is that of so long a time."""
SAMPLE_SECONDS = 0.5


class Admission:
    """Limits to how much may wait; 0 is no limit."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._samples: deque[tuple[float, int]] = deque()
        """(when, tokens that had begun by then), at most a window old but for the first."""

    @property
    def limited(self) -> bool:
        """Whether there is a limit at all."""
        return bool(self._max_requests or self._max_tokens)

    def note(self, begun_tokens: int, now: float) -> None:
        """`begun_tokens`: of all requests so far, those of which the line has got rid. `now`: in seconds."""
        samples = self._samples
        if samples and now - samples[-1][0] < SAMPLE_SECONDS:
            return
        samples.append((now, begun_tokens))
        while len(samples) > 1 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()

    def check(self, line: tuple[int, int], prompt_tokens: int, now: float) -> None:
        """`line`: requests and tokens that wait. Raises `TooMuchWaits` if there is no room for one more.

        Nobody is refused where nobody waits, however long the prompt is: it would never get in.
        """
        requests, tokens = line
        too_many = 0 < self._max_requests <= requests
        too_long = 0 < self._max_tokens < tokens + prompt_tokens and requests > 0
        if too_many or too_long:
            raise TooMuchWaits(self._seconds(tokens, now))

    def _seconds(self, tokens: int, now: float) -> int:
        """How long the line will take, at the pace at which it has moved lately."""
        if len(self._samples) < 2:
            return 1
        (since, before), (_, begun) = self._samples[0], self._samples[-1]
        # If nothing has begun for a whole window, it takes at least as long again.
        seconds = tokens * (now - since) / (begun - before) if begun > before else now - since
        return max(1, ceil(seconds))
