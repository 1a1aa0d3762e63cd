"""The watchdog: finds out if the device hangs, in a kernel that never ends or a rank that never answers.

When a device hangs nothing fails and the lease is renewed, but no result comes. So the worker's process ends
itself. Then its lease ends, and the scheduler takes its sequences to another worker.

A step may also be slow. On a CPU it takes from milliseconds to minutes, by model and machine. So the limit
depends on how long the steps before it took.
"""

import asyncio
import threading
import time
from collections import deque
from typing import NamedTuple

from gpu_worker.arrays import int32s
from proto.worker_pb2 import StepPlan

PATIENCE = 60.0
"""Seconds that any step may take, because kernels may be compiled in it."""
FIRST = 600.0
"""Seconds that the first step may take, because it may read the weights from a disk."""
MARGIN = 10
"""A step may take this many times as long as the longest step so far; a larger step in proportion."""
CONTEXT = 4096
"""Tokens of context to attend to which takes as long as the rest of a token, in a small model."""
TICKS = 12
"""Times that the watchdog looks at the clock in `PATIENCE` seconds."""


class _Begun(NamedTuple):
    """A step that has begun."""

    tokens: int
    size: float
    """Tokens, each weighed by its context, at least 1. Steps of one size take about as long as each other."""


class Watchdog:
    """Measures how long the device takes. The engine's threads report the begin and end of each step."""

    def __init__(self, patience: float = PATIENCE, first: float = FIRST) -> None:
        self.steps = 0
        """Number of steps that have begun."""
        self._patience, self._first = patience, first
        self._lock = threading.Lock()
        self._unanswered: deque[_Begun] = deque()
        """Steps that have begun and have no answer, oldest first."""
        self._since = 0.0
        """Time from which the oldest of these steps is being computed."""
        self._longest = 0.0
        """Seconds of the longest step so far."""
        self._largest = _Begun(0, 0.0)
        """The most tokens and the largest size of a step so far; 0: there was none."""
        self._clock = AwakeClock(2 * patience / TICKS)

    def begun(self, plan: StepPlan) -> None:
        """Report that a step is being given to the device."""
        packed = plan.rows.starts, plan.rows.counts
        starts, counts = (int32s(each[: len(each) // 4 * 4]) for each in packed)
        tokens = int(counts.sum())
        if len(starts) == len(counts):  # the runner refuses a malformed plan
            size = float(counts @ (1 + (starts + counts) / CONTEXT))
        else:
            size = float(tokens)
        with self._lock:
            self.steps += 1
            if not self._unanswered:
                self._since = self._clock.now()
            self._unanswered.append(_Begun(tokens, max(1.0, size)))

    def answered(self) -> None:
        """Report that the oldest step has ended, with a result or an error."""
        with self._lock:
            now = self._clock.now()
            self._longest = max(self._longest, now - self._since)
            step, most = self._unanswered.popleft(), self._largest
            self._largest = _Begun(max(most.tokens, step.tokens), max(most.size, step.size))
            self._since = now

    @property
    def waiting(self) -> bool:
        """Whether a step has no answer yet."""
        return bool(self._unanswered)

    async def hung(self) -> str:
        """Wait until the device hangs. Returns the reason as a line for a person."""
        while True:
            await asyncio.sleep(self._patience / TICKS)
            with self._lock:
                self._clock.tick()
                waited = self._clock.now() - self._since
                if self._unanswered and waited > self._limit(step := self._unanswered[0]):
                    return (
                        f"a step of {step.tokens} tokens has not ended after {waited:.0f} s, the longest "
                        f"before took {self._longest:.3g} s: the device hangs, and this process ends"
                    )

    def _limit(self, step: _Begun) -> float:
        """Seconds that a step may take. It is larger by its tokens or by its size: in some models contexts
        take no time."""
        if not self._largest.size:
            return self._first
        larger = max(1.0, step.tokens / max(1, self._largest.tokens), step.size / self._largest.size)
        return max(self._patience, MARGIN * self._longest * larger)


class AwakeClock:
    """A clock that stands still while the process is stopped, its machine sleeps or its loop is blocked."""

    def __init__(self, most: float) -> None:
        """`most`: seconds by which the clock may advance from one tick to the next."""
        self._most = most
        self._shown, self._at = 0.0, time.monotonic()

    def now(self) -> float:
        """Time that the clock shows. Seconds."""
        return self._shown + min(time.monotonic() - self._at, self._most)

    def tick(self) -> None:
        """Let the clock advance by `most` seconds more. To be called more often than every `most` seconds."""
        self._shown, self._at = self.now(), time.monotonic()
