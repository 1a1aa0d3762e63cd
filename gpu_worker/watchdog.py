"""A device that hangs: a kernel that has no end, a rank for which the others wait in vain.

Nothing fails then and the lease is renewed, but no result will come. The process that sees to it ends itself:
with it goes its lease, and the scheduler takes its sequences elsewhere.

A step may be slow, though. How slow is known only from those before: on a CPU it takes from milliseconds to
minutes, by model and machine.
"""

import asyncio
import threading
import time
from collections import deque

from proto import arrays
from proto.worker_pb2 import StepPlan

PATIENCE = 60.0
"""Seconds that any step may take, as one for which kernels are compiled."""
FIRST = 600.0
"""Seconds that a step may take while nothing is known yet: it may have to read the weights from a disk."""
MARGIN = 10
"""A step may take this many times as long as the longest so far, and a larger step in proportion."""
TICKS = 12
"""Looks in the least time that a step may take."""


class Watchdog:
    """Told by the engine's threads what begins and what is answered."""

    def __init__(self, patience: float = PATIENCE, first: float = FIRST) -> None:
        self._patience, self._first = patience, first
        self._lock = threading.Lock()
        self._unanswered: deque[int] = deque()
        """Tokens of each step, in order."""
        self._since = 0.0
        self._longest, self._most = 0.0, 0
        """Seconds and tokens, at most, of a step so far."""
        self._clock = Awake(2 * patience / TICKS)

    def begun(self, plan: StepPlan) -> None:
        """A step is now being given to the device."""
        counts = plan.rows.counts
        tokens = sum(arrays.unpack(counts[: len(counts) // 4 * 4]))  # the runner refuses a malformed one
        with self._lock:
            if not self._unanswered:
                self._since = self._clock.now()
            self._unanswered.append(max(1, tokens))

    def answered(self) -> None:
        """The oldest step is over, in whatever way."""
        with self._lock:
            now = self._clock.now()
            self._longest = max(self._longest, now - self._since)
            self._most = max(self._most, self._unanswered.popleft())
            self._since = now

    async def hung(self) -> str:
        """Return once the device counts as hung, and say why. To be awaited all the time."""
        while True:
            await asyncio.sleep(self._patience / TICKS)
            with self._lock:
                self._clock.tick()
                waited = self._clock.now() - self._since
                if self._unanswered and waited > self._limit(tokens := self._unanswered[0]):
                    return (
                        f"a step of {tokens} tokens has not ended after {waited:.0f} s, the longest before "
                        f"took {self._longest:.3g} s: the device hangs, and this process ends"
                    )

    def _limit(self, tokens: int) -> float:
        """Seconds that a step may take."""
        if not self._most:
            return self._first
        return max(self._patience, MARGIN * self._longest * max(1.0, tokens / self._most))


class Awake:
    """A clock that stands still while the process is stopped, its machine sleeps or its loop is blocked."""

    def __init__(self, most: float) -> None:
        """`most`: seconds that it shows at most beyond its last tick."""
        self._most = most
        self._shown, self._at = 0.0, time.monotonic()

    def now(self) -> float:
        """Seconds."""
        return self._shown + min(time.monotonic() - self._at, self._most)

    def tick(self) -> None:
        """To be called more often than it stands still by itself."""
        self._shown, self._at = self.now(), time.monotonic()
