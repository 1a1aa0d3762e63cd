"""The engine's threads and the calls that they serve, over a runner that computes nothing."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker import engine as module
from gpu_worker.engine import Engine, Session
from gpu_worker.errors import DeviceError, PlanError, StepError
from proto.worker_pb2 import StepPlan, StepResult


class Step:
    """A step under way whose result can be had as soon as it `may_end`."""

    def __init__(self, number: int, failed: tuple[int, ...] = (), error: Exception | None = None) -> None:
        self.number, self.failed, self.error = number, failed, error
        self.may_end = threading.Event()
        self.may_end.set()

    def result(self) -> StepResult:
        wait_for(self.may_end)
        if self.error is not None:
            raise self.error
        return StepResult(step=self.number)


class FakeRunner:
    """Notes what is done with it, and in which thread."""

    def __init__(self) -> None:
        self.limits = SimpleNamespace()
        self.device = torch.device("cpu")
        self.followers: Any = None
        self.done: list[tuple[str, Any, str]] = []
        """(what, with what, thread)"""
        self.steps: dict[int, Step | Exception] = {}
        """What a plan begins, by its number; others begin a step that ends at once."""

    def enter(self) -> None:
        self._note("enter", None)

    def reset(self) -> None:
        self._note("reset", None)

    def announce_grammars(self, announce: Callable[[int], None]) -> None:
        pass

    def announce_sights(self, announce: Callable[[int], None]) -> None:
        pass

    def settle(self, step: Step) -> None:
        self._note("settle", step.number)

    def begin(self, plan: StepPlan) -> Step:
        self._note("begin", plan.step)
        step = self.steps.get(plan.step) or Step(plan.step)
        if isinstance(step, Exception):
            raise step
        return step

    def _note(self, what: str, of: Any) -> None:
        self.done.append((what, of, threading.current_thread().name))

    @property
    def order(self) -> list[Any]:
        """What was done after `enter`: numbers of plans begun, other words as they are."""
        return [of if what == "begin" else what for what, of, _ in self.done[1:]]


Start = Callable[..., Engine]


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
async def start(runner: FakeRunner) -> AsyncIterator[Start]:
    engines: list[Engine] = []

    def begun(overlap: bool = False) -> Engine:
        engines.append(Engine(runner, overlap))  # type: ignore[arg-type]
        return engines[-1]

    yield begun
    for engine in engines:
        await engine.stop()


async def events(call: Session, count: int) -> list[Any]:
    return [await asyncio.wait_for(call.events.get(), 60) for _ in range(count)]


async def done(engine: Engine) -> None:
    """Returns when the engine's thread has done what it was given so far."""
    reached = threading.Event()
    engine.submit(reached.set)
    await asyncio.to_thread(wait_for, reached)


def wait_for(event: threading.Event) -> None:
    assert event.wait(10)


@pytest.mark.parametrize("overlap", [False, True], ids=["answers itself", "overlaps"])
async def test_one_thread_has_the_runner(runner: FakeRunner, start: Start, overlap: bool) -> None:
    call = Session(start(overlap))
    for number in range(1, 6):
        call.submit(StepPlan(step=number))
    call.finish()
    *results, last = await events(call, 6)
    assert [result.step for result in results] == [1, 2, 3, 4, 5]
    assert last is None
    assert runner.done[0] == ("enter", None, "engine")
    assert {thread for _, _, thread in runner.done} == {"engine"}
    assert [of for what, of, _ in runner.done if what == "begin"] == [1, 2, 3, 4, 5]


async def test_without_overlap_a_step_is_settled_before_the_next_begins(
    runner: FakeRunner, start: Start
) -> None:
    call = Session(start())
    for number in (1, 2):
        call.submit(StepPlan(step=number))
    await events(call, 2)
    assert runner.order == [1, "settle", 2, "settle"]


async def test_with_overlap_the_next_step_begins_before_the_result_is_there(
    runner: FakeRunner, start: Start
) -> None:
    slow = runner.steps[1] = Step(1)
    slow.may_end.clear()
    engine = start(True)
    call = Session(engine)
    for number in (1, 2):
        call.submit(StepPlan(step=number))
    await done(engine)
    assert runner.order == [1, 2]
    assert call.events.empty()
    slow.may_end.set()
    assert [result.step for result in await events(call, 2)] == [1, 2]


async def test_with_overlap_only_a_step_that_failed_is_settled_and_in_the_engine_s_thread(
    runner: FakeRunner, start: Start
) -> None:
    runner.steps[2] = Step(2, failed=(3,))
    engine = start(True)
    call = Session(engine)
    for number in (1, 2):
        call.submit(StepPlan(step=number))
    await events(call, 2)
    await done(engine)
    assert [each for each in runner.done if each[0] == "settle"] == [("settle", 2, "engine")]


async def test_the_end_of_a_call_drops_what_has_not_begun_and_comes_before_the_next(
    runner: FakeRunner, start: Start
) -> None:
    engine = start()
    may_go = threading.Event()
    engine.submit(lambda: wait_for(may_go))
    first, second = Session(engine), Session(engine)
    first.submit(StepPlan(step=1))
    first.end()
    second.submit(StepPlan(step=7))
    may_go.set()
    (result,) = await events(second, 1)
    assert result.step == 7
    assert runner.order[:2] == ["reset", 7]
    assert first.events.empty()


@pytest.mark.parametrize("when", ["begun", "waited for"])
async def test_a_step_that_fails_ends_its_call_alone(
    runner: FakeRunner, start: Start, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    fault = RuntimeError("the device is on fire")
    runner.steps[1] = fault if when == "begun" else Step(1, error=fault)
    engine = start()
    call = Session(engine)
    for number in (1, 2):
        call.submit(StepPlan(step=number))
    (error,) = await events(call, 1)
    assert isinstance(error, StepError)
    assert (error.step, str(error)) == (1, "step 1: RuntimeError: the device is on fire")
    await done(engine)
    assert runner.order == [1], "a plan after the one that failed has begun"
    assert call.events.empty()
    assert "step 1 failed" in caplog.text
    assert not engine.lost.done()
    call.end()
    following = Session(engine)
    following.submit(StepPlan(step=3))
    assert (await events(following, 1))[0].step == 3


async def test_a_bad_plan_is_the_scheduler_s_fault(
    runner: FakeRunner, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other ranks go on, nothing is logged and the device is not suspected."""
    monkeypatch.setattr(module, "is_lost", lambda device: True)
    abandoned: list[Exception] = []
    runner.followers = SimpleNamespace(failed=abandoned.append)
    refused, fault = PlanError("plan 7 came after plan 1"), RuntimeError("broken")
    runner.steps = {7: refused, 8: fault}
    engine = start()
    bad, broken = Session(engine), Session(engine)
    bad.submit(StepPlan(step=7))
    assert await events(bad, 1) == [refused]
    assert (abandoned, caplog.records, engine.lost.done()) == ([], [], False)
    broken.submit(StepPlan(step=8))
    with pytest.raises(DeviceError, match="broken"):
        await asyncio.wait_for(engine.lost, 60)
    await done(engine)
    assert abandoned == [fault]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert broken.events.empty(), "a lost device is not the fault of the step's requests"


async def test_the_watchdog_knows_of_every_step_whatever_becomes_of_it(
    runner: FakeRunner, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    told: list[str] = []
    monkeypatch.setattr(engine.watchdog, "begun", lambda plan: told.append(f"begun {plan.step}"))
    monkeypatch.setattr(engine.watchdog, "answered", lambda: told.append("answered"))
    runner.steps = {2: Step(2, error=RuntimeError("late")), 3: PlanError("at once")}
    for number in (1, 2, 3):
        call = Session(engine)
        call.submit(StepPlan(step=number))
        await events(call, 1)
    assert told == ["begun 1", "answered", "begun 2", "answered", "begun 3", "answered"]


@pytest.mark.parametrize("overlap", [False, True], ids=["answers itself", "overlaps"])
async def test_it_ends_after_what_it_was_given(runner: FakeRunner, overlap: bool) -> None:
    engine = Engine(runner, overlap)  # type: ignore[arg-type]
    call = Session(engine)
    for number in range(1, 4):
        call.submit(StepPlan(step=number))
    await engine.stop()
    assert [result.step for result in await events(call, 3)] == [1, 2, 3]
    assert not any(thread.is_alive() for thread in engine._threads)


async def test_a_thread_that_waits_for_a_device_in_vain_is_left(
    runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    hanging = runner.steps[1] = Step(1)
    hanging.may_end.clear()
    engine = Engine(runner, overlap=True)  # type: ignore[arg-type]
    Session(engine).submit(StepPlan(step=1))
    await asyncio.wait_for(engine.stop(), 60)
    assert [thread.is_alive() for thread in engine._threads] == [False, True]
    hanging.may_end.set()


@pytest.mark.parametrize("overlap", [False, True], ids=["answers itself", "overlaps"])
async def test_a_thread_that_fails_is_the_end_of_the_process(start: Start, overlap: bool) -> None:
    engine = start(overlap)

    def fail() -> None:
        raise SystemExit(3)

    engine.submit(lambda: engine.answer(fail))
    with pytest.raises(SystemExit):
        await asyncio.wait_for(asyncio.shield(engine.lost), 60)
