"""How long the device takes for a step, and how one waits for its end."""

import time

import torch


class HostClock:
    """A step's time where it is over when it was begun."""

    def __init__(self) -> None:
        self._begin = time.perf_counter_ns()

    def stop(self) -> None:
        """Everything of the step has been given to the device."""

    def wait(self) -> int:
        """Wait until the device is done; the microseconds that it took."""
        return (time.perf_counter_ns() - self._begin) // 1000


class DeviceClock:
    """See `HostClock`: a step's time between two events of its stream."""

    def __init__(self) -> None:
        self._begin, self._end = _event(), _event()
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def wait(self) -> int:
        self._end.synchronize()
        return int(self._begin.elapsed_time(self._end) * 1000)


def _event() -> torch.cuda.Event:
    """One that is slept for: a thread that spun would take a core from the services."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    return event


def clock(device: torch.device) -> HostClock | DeviceClock:
    """Begin to measure a step."""
    return DeviceClock() if device.type == "cuda" else HostClock()
