"""Adding up what work on the device takes."""

import threading

import pytest
import torch

from gpu_worker.machine import clock
from gpu_worker.machine.clock import Stopwatch


class FakeClock:
    """Of a device that ends its work when a test says so."""

    def __init__(self, device: torch.device) -> None:
        self.stopped = self.has_ended = False

    def stop(self) -> None:
        self.stopped = True

    def ended(self) -> bool:
        return self.has_ended

    def wait(self) -> int:
        assert self.stopped
        assert self.has_ended, "nothing waits for the device"
        return 250_000


def test_what_is_under_way_counts_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[FakeClock]()

    def clock_of(device: torch.device) -> FakeClock:
        made.append(FakeClock(device))
        return made[-1]

    monkeypatch.setattr(clock, "clock", clock_of)
    watch = Stopwatch(torch.device("cuda"))
    for _ in range(2):
        with watch.measuring():
            assert not made[-1].stopped
    assert (watch.count, watch.seconds) == (0, 0)
    made[0].has_ended = True
    watch.look()
    watch.look()
    assert (watch.count, watch.seconds) == (1, 0.25)
    made[1].has_ended = True
    with watch.measuring():
        pass
    assert (watch.count, watch.seconds) == (2, 0.5)


def test_two_threads_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and the thread that sees images: what one has found ended, the other does not take."""
    watch, others = Stopwatch(torch.device("cuda")), list[threading.Thread]()

    class Slow(FakeClock):
        def ended(self) -> bool:
            self.has_ended = True
            if not others:
                others.append(threading.Thread(target=watch.look))
                others[0].start()
                others[0].join(0.2)
            return True

    monkeypatch.setattr(clock, "clock", Slow)
    with watch.measuring():
        pass
    others[0].join()
    assert (watch.count, watch.seconds) == (1, 0.25)


def test_a_cpu_has_ended_with_the_call_and_errors_do_not_count() -> None:
    watch = Stopwatch(torch.device("cpu"))
    with pytest.raises(ValueError, match="broken"), watch.measuring():
        raise ValueError("broken")
    assert watch.count == 0
    with watch.measuring():
        pass
    assert watch.count == 1
    assert 0 <= watch.seconds < 1
