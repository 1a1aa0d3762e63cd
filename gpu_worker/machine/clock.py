"""Clocks that measure how long the device takes for a step, and wait for its end."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch


class HostClock:
    """Measures a step on a device that has computed when a call returns: a CPU."""

    def __init__(self) -> None:
        self._begin = time.perf_counter_ns()

    def stop(self) -> None:
        """To be called when all work of the step has been given to the device."""

    def ended(self) -> bool:
        """Whether `wait` need not wait."""
        return True

    def wait(self) -> int:
        """Wait until the device has ended the step. Returns the microseconds that the step took."""
        return (time.perf_counter_ns() - self._begin) // 1000


class DeviceClock:
    """Measures a step on a GPU, between two events of its stream. See `HostClock`."""

    def __init__(self) -> None:
        self._begin, self._end = _event(), _event()
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def ended(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    def wait(self) -> int:
        self._end.synchronize()
        return int(self._begin.elapsed_time(self._end) * 1000)


def _event() -> torch.cuda.Event:
    """An event whose waiting thread sleeps. A thread that spins would take a core from the services."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return event


def clock(device: torch.device) -> HostClock | DeviceClock:
    """A clock that begins to measure a step on `device` now."""
    return DeviceClock() if device.type == "cuda" else HostClock()


class Stopwatch:
    """Adds up how long the device takes for some of its work, and never waits for it. For any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._under_way = deque[HostClock | DeviceClock]()
        self._lock = Lock()
        self.count = 0
        """Pieces of work that have ended, as far as `look` has seen."""
        self.seconds = 0.0
        """What these took together."""

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure a piece of work, unless it raises an error."""
        measured = clock(self._device)
        yield
        measured.stop()
        self._under_way.append(measured)
        self.look()

    def look(self) -> None:
        """Add what has ended."""
        with self._lock:
            while self._under_way and self._under_way[0].ended():
                self.seconds += self._under_way.popleft().wait() / 1e6
                self.count += 1
