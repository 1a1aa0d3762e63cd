"""What a person sees while something takes long."""

import sys

import pytest

from ops.launcher import progress
from ops.launcher.progress import Progress


class Clock:
    now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_without_a_terminal_what_takes_long_is_a_line(clock: Clock) -> None:
    said: list[str] = []
    with Progress(said.append) as shown:
        for what, seconds in (("a", 0.9), ("b", 0.9), ("b", 0.2), ("b", 5.0), ("c", 0.9), ("a", 2.0)):
            shown.show(what)
            clock.now += seconds
        shown.show("a")
    assert said == ["wait    b", "wait    a"]


def test_in_a_terminal_it_is_drawn_with_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said: list[str] = []
    with Progress(said.append) as shown:
        shown.show("loading [weights]")
        clock.now += 12
        shown.show("loading [weights]")
    assert said == []
    assert "loading [weights], 12 s" in capsys.readouterr().out
