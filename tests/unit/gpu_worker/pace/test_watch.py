"""What the log and the lease say of slow steps."""

import logging
from dataclasses import replace

import pytest

from gpu_worker.kernels.cpu import build
from gpu_worker.machine.rates import Rates
from gpu_worker.pace import pace as pace_module
from gpu_worker.pace import watch
from gpu_worker.pace.pace import EVERY, TIMED, WINDOW, Slow
from gpu_worker.pace.watch import line, pace_of
from gpu_worker.startup.load import load
from tests.support.adapters import write_adapter
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, random_model
from tests.unit.gpu_worker.conftest import new_slot, plan

FAST = Rates(read=1e15, matrix=1e18)
SLOW = Slow(
    step=0.118,
    parts={"products": 0.02, "attention": 0.09, "sampling": 0.001, "other": 0.007},
    floors={"products": 0.019, "attention": 0.003, "sampling": 0.0, "other": 0.002},
    floor=0.0281,
    computing=0.97,
)


def test_the_line() -> None:
    assert line(SLOW) == (
        "a step takes 118 ms, 4.2 times its floor of 28.1 ms: most of it beyond that is attention 90 ms "
        "(at least 3 ms); products 20 ms (at least 19 ms), sampling 1 ms, other 7 ms (at least 2 ms). "
        "Look at: other processes and other machines of the host, which take memory bandwidth"
    )
    held_up = line(replace(SLOW, computing=0.6))
    assert "Look at: the thread that computes had a core for 60% of the time: other processes" in held_up


def test_settings_that_make_steps_slow_are_named(settings, monkeypatch) -> None:
    best = build.supported()[0]
    monkeypatch.setattr(watch, "granted", lambda: 8)
    assert watch._hints(settings(threads=8), f"{best} oneDNN") == []
    assert watch._hints(settings(threads=2), best) == ["QUIRE_THREADS: 2 threads, 8 cores"]
    (named,) = watch._hints(settings(threads=8), "torch AVX2")
    assert named == f"QUIRE_KERNELS: torch AVX2 computes, the processor has {best}"


@pytest.mark.parametrize("name", ["Qwen3.5", "Nemotron H", "Falcon H1", "Mamba-2"])
def test_floors_of_recurrent_models_are_known(settings, tmp_path, name: str) -> None:
    """Of the last one no layer has attention, and so no pages."""
    random_model(*(MODELS | ALIKE)[name]).save_pretrained(tmp_path)
    runner = load(settings(model=tmp_path))
    assert (runner.token_bytes == 0) == (name == "Mamba-2")
    pace = pace_of(settings(), runner, FAST, build.supported()[0], lambda _: None)
    assert pace is not None
    new = new_slot(0, [1, 2, 3], [0])
    pending = pace.run(runner.begin, plan(1, [(0, 0, 3, 1)], new_slots=[new]))
    assert len(pending.result().tokens) == 4
    work = pace._work_of(pending.plan)
    assert work is not None
    assert work.floor(Rates(read=1e9, matrix=1e12)) > 0


def test_a_runner_s_steps_are_compared(make, settings, monkeypatch, caplog) -> None:
    """The real thing, with rates that no machine has: every step is slow. Then the machine is slower."""
    monkeypatch.setattr(pace_module, "HOST", 0.0)
    runner, noted = load(settings(block_size=4)), []
    pace = pace_of(settings(), runner, FAST, build.supported()[0], noted.append)
    assert pace is not None
    caplog.set_level(logging.INFO)

    class Paced:
        """The runner as the engine calls it."""

        limits = runner.limits

        def execute(self, plan):
            step = pace.run(runner.begin, plan)
            result = step.result()
            pace.ended(step.plan, result.duration_us)
            return result

    driver = make.Driver(Paced())
    for _ in range(EVERY * (WINDOW + TIMED) // 100 + 1):
        sequence = driver.admit(0, [1, 2, 3])
        driver.generate(sequence, 100)
        driver.release(sequence)
    (warned,) = (record for record in caplog.records if "times its floor" in record.getMessage())
    assert warned.levelno == logging.WARNING
    (note,) = noted
    assert note.endswith("times the floor")
    pace._rates = Rates(read=1.0, matrix=1.0)
    for _ in range(EVERY * WINDOW * 2 // 100 + 1):
        sequence = driver.admit(0, [1, 2, 3])
        driver.generate(sequence, 100)
        driver.release(sequence)
    assert noted[1:] == [""]
    assert "within 3 times their floors again" in caplog.text


@pytest.mark.parametrize("without", ["rates", "known model", "draft model"])
def test_what_has_no_floor_is_not_compared(settings, saved, without: str) -> None:
    asked, rates = settings(), FAST
    if without == "rates":
        rates = None
    elif without == "draft model":
        asked = settings(draft_model=settings().model)
    runner = load(asked)
    if without == "known model":
        runner.model.config = object()
    assert pace_of(asked, runner, rates, "avx2", lambda _: None) is None


def test_steps_with_adapters_have_no_floor(settings, tiny, tmp_path) -> None:
    write_adapter(tmp_path, tiny.model)
    runner = load(settings(lora_modules=f"a={tmp_path}", kv_memory=2**20))
    pace = pace_of(settings(), runner, FAST, build.supported()[0], lambda _: None)
    assert pace is not None
    news = [new_slot(slot, [1, 2, 3], [slot], adapter=name) for slot, name in enumerate(("a", ""))]
    pending = pace.run(runner.begin, plan(1, [(0, 0, 3, 1), (1, 0, 3, 1)], new_slots=news))
    assert pace._work_of(pending.plan) is None
    pending = pace.run(runner.begin, plan(2, [(1, 3, 1, 1)]))
    assert pace._work_of(pending.plan) is not None
