"""What a rank does with the orders of rank 0."""

import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from gpu_worker.rank_main import follow
from gpu_worker.ranks.announcements import records
from gpu_worker.ranks.processes import Order


class EndedError(Exception):
    """Ends `follow`."""


def test_grammars_are_announced_with_the_call_that_they_are_of() -> None:
    """One that is still compiled when its call is over counts for that call, and for none that follows."""
    told: list[Callable[[int], None]] = []

    def fail(slots: Sequence[int]) -> None:
        told[0](3)
        told[1](4)
        told[0](5)
        raise EndedError

    runner = SimpleNamespace(enter=lambda: None, reset=lambda: None, announce_grammars=told.append, fail=fail)
    orders: SimpleQueue[tuple[Order, bytes]] = SimpleQueue()
    orders.put((Order.RESET, b""))
    orders.put((Order.FAIL, b""))
    reading, writing = os.pipe()
    with pytest.raises(EndedError):
        follow(runner, orders, writing)  # type: ignore[arg-type]
    os.close(writing)
    with open(reading, "rb") as answers:
        assert list(records(answers)) == [(0, 3), (1, 4), (0, 5)]
