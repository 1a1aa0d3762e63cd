"""The pace of an answer, on a clock that a test moves."""

import pytest

from ops.cli.chat import pace
from ops.cli.chat.pace import Pace
from ops.cli.chat.server import Delta


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], ""),
        ([(1.0, Delta(finish="stop"))], ""),
        ([(0.5, Delta(text="a"))], "1 token, first after 0.50 s"),
        (
            [(0.5, Delta(thought="a")), (0.5, Delta(text="b")), (9.0, Delta(tokens=6))],
            "6 tokens, 10.0 tokens/s, first after 0.50 s",
        ),
        ([(0.5, Delta(text="a")), (0.01, Delta(text="b"))], "2 tokens, first after 0.50 s"),
        (
            [(0.25, Delta(text="a")), (2.0, Delta(text="b")), (0.0, Delta(finish="length"))],
            "2 tokens, 0.5 tokens/s, first after 0.25 s, cut off at the limit of tokens",
        ),
    ],
)
def test_pace(monkeypatch: pytest.MonkeyPatch, steps: list[tuple[float, Delta]], said: str) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    measured = Pace()
    for seconds, delta in steps:
        clock.now += seconds
        measured.count(delta)
    assert measured.summary() == said
