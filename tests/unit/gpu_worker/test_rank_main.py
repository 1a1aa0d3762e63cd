"""What a rank does with the orders of rank 0."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from gpu_worker import rank_main
from gpu_worker.errors import CapacityError, NoDeviceError, OutOfMemoryError
from gpu_worker.rank_main import follow
from gpu_worker.ranks.announcements import failure, records
from gpu_worker.ranks.processes import Order, write
from proto.worker_pb2 import StepPlan


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


def broken(told: list[str]) -> SimpleNamespace:
    """A runner whose steps all raise."""

    def begin(plan: StepPlan) -> None:
        told.append(f"plan {plan.step}")
        raise ZeroDivisionError(plan.step)

    return SimpleNamespace(
        enter=lambda: None,
        announce_grammars=lambda announce: None,
        begin=begin,
        reset=lambda: told.append("reset"),
    )


def plan_of(step: int) -> tuple[Order, bytes]:
    return Order.PLAN, StepPlan(step=step).SerializeToString()


def test_a_step_that_raises_is_told_and_what_follows_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that rank 0 had sent before it noticed are of the call that is over."""
    monkeypatch.setattr(rank_main, "_RESET", 0.01)
    told, orders = list[str](), SimpleQueue[tuple[Order, bytes]]()
    for order in (plan_of(1), plan_of(2), (Order.RESET, b""), plan_of(1)):
        orders.put(order)
    reading, writing = os.pipe()
    with pytest.raises(ZeroDivisionError):  # no reset follows the second one: rank 0 waits for this rank
        follow(broken(told), orders, writing, lambda: 5)  # type: ignore[arg-type]
    os.close(writing)
    assert told == ["plan 1", "reset", "plan 1"]
    with open(reading, "rb") as answers:
        assert answers.read() == failure(0, 5) + failure(1, 5)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OutOfMemoryError("the weights"), 1),
        (NoDeviceError("no GPU"), 1),
        (CapacityError("a setting"), 2),
        (ZeroDivisionError("the code"), 1),
    ],
)
def test_only_what_a_second_start_would_not_mend_is_hopeless(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def refuse(settings: object) -> None:
        raise error

    stdin = BytesIO()
    settings = {"model": "/none", "tensor_parallel": 2}
    write(stdin, Order.START, json.dumps({"rank": 1, "settings": settings}).encode())
    stdin.seek(0)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    monkeypatch.setattr(rank_main, "device_of", refuse)
    for place, name in ((rank_main, "tie_to_parent"), (rank_main, "_listen"), (rank_main, "start_logs")):
        monkeypatch.setattr(place, name, lambda *given: None)
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        rank_main.main()
    assert ended.value.code == status
