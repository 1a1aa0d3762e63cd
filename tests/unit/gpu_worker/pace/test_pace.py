"""Steps are compared with their floors, and what is slow is said once, with the part that is to blame."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.machine.rates import Rates
from gpu_worker.models.work import Work
from gpu_worker.pace import pace as module
from gpu_worker.pace.pace import EVERY, HOST, REST, SLOW, TIMED, WINDOW, Pace, Slow
from gpu_worker.pace.parts import ATTENTION, OTHER, PRODUCTS, SAMPLING

RATES = Rates(read=1e9, matrix=1e12)
WORK = Work(weight_bytes=20_000_000, kv_bytes=1_000_000, product_operations=1, attention_operations=1)
"""Floors of 20 and 1 ms: 21 ms of which memory is read."""
FLOOR = 0.021
LIMIT = SLOW * (FLOOR + HOST)


class Worker:
    """Takes steps, whose parts take the given seconds, under a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, work: Work | None = WORK) -> None:
        self.now = 0.0
        self.asked = 0
        self.timed = 0
        self.said: list[Slow | None] = []
        self.work = work
        monkeypatch.setattr(module, "Parts", lambda: Timed(self))
        self.pace = Pace(self.work_of, RATES, self.said.append, lambda: self.now)
        self.parts: dict[str, float] = {}

    def work_of(self, _: Any) -> Work | None:
        self.asked += 1
        return self.work

    def steps(self, count: int, **parts: float) -> None:
        """`parts`: seconds of products, attention, sampling and other."""
        self.parts = parts
        for _ in range(count):
            assert self.pace.run(lambda plan: plan, "plan") == "plan"  # type: ignore[arg-type, return-value]
            self.now += sum(parts.values())
            self.pace.ended(SimpleNamespace(), round(1e6 * sum(parts.values())))  # type: ignore[arg-type]


class Timed:
    """As `Parts`: whatever the worker says that a step takes."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.clear()

    def clear(self) -> None:
        self.whole = self.computing = 0.0
        self.by_part = dict.fromkeys((PRODUCTS, ATTENTION, SAMPLING, OTHER), 0.0)

    def __enter__(self) -> None:
        self.worker.timed += 1
        self.whole += sum(self.worker.parts.values())
        self.computing += sum(self.worker.parts.values()) / 2
        for part, seconds in self.worker.parts.items():
            self.by_part[part] += seconds

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_one_step_in_some_is_compared_and_none_is_timed(worker: Worker) -> None:
    worker.steps(10 * EVERY * WINDOW, products=0.9 * LIMIT)
    assert worker.asked == 10 * WINDOW
    assert worker.timed == 0
    assert worker.said == []


@pytest.mark.parametrize("part", [PRODUCTS, ATTENTION, SAMPLING, OTHER])
def test_the_part_that_is_to_blame(worker: Worker, part: str) -> None:
    parts = {PRODUCTS: 0.022, ATTENTION: 0.002, SAMPLING: 0.001, OTHER: 0.002}
    parts[part] += LIMIT
    worker.steps(EVERY * WINDOW, **parts)
    assert worker.said == []
    worker.steps(EVERY * TIMED, **parts)
    (slow,) = worker.said
    assert slow is not None
    assert slow.part == part
    assert slow.step == pytest.approx(sum(parts.values()))
    assert slow.floor == pytest.approx(FLOOR)
    assert slow.times == pytest.approx(sum(parts.values()) / FLOOR)
    assert slow.parts == pytest.approx(parts)
    assert slow.floors == pytest.approx({PRODUCTS: 0.02, ATTENTION: 0.001, SAMPLING: 0, OTHER: HOST})
    assert slow.computing == pytest.approx(0.5)
    assert worker.timed == TIMED


def test_a_floor_that_is_high_is_no_blame(worker: Worker) -> None:
    """Products take longest here, but only twice their floor; attention takes 30 times its own."""
    worker.steps(EVERY * (WINDOW + TIMED), products=0.042, attention=0.03)
    assert worker.said[0] is not None
    assert worker.said[0].part == ATTENTION


def test_a_small_model_s_steps_are_python(worker: Worker) -> None:
    """Many times their floor, which is next to nothing, but within what Python takes."""
    worker.work = Work(1000, 1000, 1, 1)
    worker.steps(EVERY * WINDOW * 2, other=2.9 * HOST)
    assert worker.timed == 0


def test_one_slow_window_without_slow_steps_after_it_is_not_said(worker: Worker) -> None:
    worker.steps(EVERY * WINDOW, products=2 * LIMIT)
    worker.steps(EVERY * TIMED, products=0.5 * LIMIT)
    assert worker.said == []


def test_it_is_said_again_after_a_rest_and_that_it_has_ended(worker: Worker) -> None:
    round_seconds = EVERY * (WINDOW + TIMED) * 2 * LIMIT
    rounds = 0
    while worker.now < 3 * REST:
        worker.steps(EVERY * (WINDOW + TIMED), products=2 * LIMIT)
        rounds += 1
    assert rounds > 20
    assert 3 <= len(worker.said) <= 4 <= 3 * REST / round_seconds
    assert all(worker.said)
    worker.steps(2 * EVERY * (WINDOW + TIMED), products=FLOOR)
    assert worker.said[-1] is None
    said = len(worker.said)
    worker.steps(2 * EVERY * (WINDOW + TIMED), products=FLOOR)
    assert len(worker.said) == said


def test_steps_whose_work_is_not_known_are_left_out(worker: Worker) -> None:
    worker.work = None
    worker.steps(EVERY * WINDOW * 3, products=9 * LIMIT)
    assert worker.timed == 0


def test_a_plan_that_is_refused_is_no_step(worker: Worker) -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("no")

    worker.steps(EVERY * WINDOW, products=2 * LIMIT)
    for _ in range(EVERY):
        with pytest.raises(ValueError, match="no"):
            worker.pace.run(refuse, "plan")  # type: ignore[arg-type]
    worker.steps(EVERY * TIMED, products=2 * LIMIT)
    assert len(worker.said) == 1
