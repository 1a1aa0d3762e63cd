"""Steps are measured that have the shapes they are said to have, and real answers beside simulated ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.simulate import measure, scale, validate
from ops.simulate.arrivals import Load
from ops.simulate.cost import Shape, StepCost
from ops.simulate.simulation import Setting

SETTINGS = WorkerSettings(kv_memory=64 << 20, threads=1, max_slots=16, step_tokens=96)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "IDLE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return load(SETTINGS)


@pytest.mark.parametrize(
    ("rows", "context", "chunk", "start"), [(3, 64, 16, 64), (4, 64, 0, 0), (0, 16, 32, 0)]
)
def test_a_step_has_the_shape_it_is_measured_for(runner, rows, context, chunk, start) -> None:
    measured = measure._measured(runner, rows, context, chunk, start, 1)
    plans = list(measure._plans(runner.limits, rows, context, chunk, start, 1))
    assert len(plans) == measure.BEFORE + measure.STEPS
    # Times are those of the last steps but one; of these the one in the middle.
    middle = plans[measure.BEFORE + measure.STEPS // 2]
    starts, counts = (
        np.frombuffer(packed, "<i4").tolist() for packed in (middle.rows.starts, middle.rows.counts)
    )
    rows_of = SimpleNamespace(starts=starts, counts=counts, samples=list(middle.rows.samples))
    assert Shape.of(SimpleNamespace(rows=rows_of)) == measured.shape
    assert 0 < measured.seconds < 60


def test_what_is_measured_becomes_a_cost(runner) -> None:
    steps = measure.measure(runner, 12, 1)
    found = measure.fitted(steps)
    idle = [step for step in found["steps"] if step["idle"]]
    assert [step["prefill"] for step in idle] == [8, 16, 32, 64], "more tokens than a step may have"
    assert len(found["steps"]) == 12 + len(idle)
    assert found["held_back"] == 4
    cost = StepCost.from_milliseconds(found["cost_ms"])
    assert 0 < cost.of(Shape(1, 10)) < cost.of(Shape(1, 10, 64, 64 * 32))


def test_both_ways_answer_the_same_requests(runner, monkeypatch) -> None:
    monkeypatch.setattr(validate, "SHAPES", 8)
    monkeypatch.setattr(measure, "STEPS", 3)
    monkeypatch.setattr(validate, "RUNS", 2)
    monkeypatch.setattr(validate, "TRIES", 2)
    loads = [
        Load(kind, requests=6, rate=40, prompt_lengths=(9, 21), output_lengths=(3, 8), tenants=1)
        for kind in ("poisson", "bursts")
    ]
    compared = validate.validate(runner, loads, Setting(step_tokens=96, slots=16))
    assert [each["load"]["kind"] for each in compared] == ["poisson", "bursts"]
    for each in compared:
        for name, error in each["error"].items():
            assert each["earnest"][name] > 0
            assert error == pytest.approx(each["simulated"][name] / each["earnest"][name] - 1, abs=1e-3)
    assert "bursts" in validate.table(compared)


def test_runs_whose_cores_were_stolen_do_not_count(runner, monkeypatch) -> None:
    shares = iter([0, *(0.3, 0), *(0, 0), *(0, 0.2), *(0, 0), *(0.005, 0)])
    speeds = iter([1, 50, 4, 60, 70, 6])  # of the run that warms up, and of five runs
    monkeypatch.setattr(validate, "stolen_share", lambda work: (work(), next(shares)))
    monkeypatch.setattr(validate, "measure", lambda *_: [])
    monkeypatch.setattr(validate, "fit", lambda _: None)
    monkeypatch.setattr(validate, "in_earnest", lambda *_: dict.fromkeys(validate.FIGURES, next(speeds)))
    monkeypatch.setattr(validate, "simulated", lambda *_: dict.fromkeys(validate.FIGURES, 5))
    monkeypatch.setattr(validate, "RUNS", 2)
    (found,) = validate.validate(runner, [Load(requests=1)])
    assert found["stolen"] == 0.005
    assert set(found["earnest"].values()) == {5}
    assert set(found["error"].values()) == {0}
    assert not list(speeds)


def test_a_load_is_run_no_more_often_than_allowed(runner, monkeypatch) -> None:
    shares = iter([0, *(0.1, 0, 0.4, 0, 0.2, 0)])
    monkeypatch.setattr(validate, "stolen_share", lambda work: (work(), next(shares)))
    monkeypatch.setattr(validate, "measure", lambda *_: [])
    monkeypatch.setattr(validate, "fit", lambda _: None)
    for name in ("in_earnest", "simulated"):
        monkeypatch.setattr(validate, name, lambda *_: dict.fromkeys(validate.FIGURES, 1))
    monkeypatch.setattr(validate, "TRIES", 3)
    monkeypatch.setattr(validate, "RUNS", 2)
    (found,) = validate.validate(runner, [Load(requests=1)])
    assert found["stolen"] == 0.2
    assert not list(shares)


def test_the_simulator_is_timed() -> None:
    cost = StepCost.from_milliseconds(
        {"step": 1, "row": 0.1, "prefill": 0.1, "context": 0, "pair": 0, "idle": 0}
    )
    (found,) = scale.measure(3, 50, (10.0,), cost)
    assert found["output_tokens"] == 50 * 64
    assert found["us_per_request"] == pytest.approx(found["seconds"] * 1e6 / 50, abs=200)
