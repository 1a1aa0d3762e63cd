"""Recorded plans on a worker that has not seen what came before them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.settings import WorkerSettings
from gpu_worker.step.runner import Runner
from ops.replay import tokens
from ops.replay.tokens import Compared, runner_like
from ops.runtime.errors import UsageError
from proto.arrays import pack, unpack
from proto.recording_pb2 import RecordedEvent, Recording
from proto.worker_pb2 import StepPlan, StepResult, WorkerReady


def results(recording: Recording) -> list[RecordedEvent]:
    return [event for event in recording.events if event.WhichOneof("event") == "result"]


def test_a_worker_gives_the_same_tokens(recording: SimpleNamespace, new_runner: Callable[[], Runner]) -> None:
    said: list[int] = []
    compared = Compared(recording.message, new_runner())
    found = compared.run(said.append)
    assert found.lines == []
    assert found.steps == len(said) > 30
    assert compared.rows > 100
    assert 0 < compared.rows_left_out < compared.rows


def test_the_first_other_token_is_shown(copy: Recording, new_runner: Callable[[], Runner]) -> None:
    event = results(copy)[-2]
    changed = StepResult.FromString(event.result)
    numbers = unpack(changed.tokens)
    numbers[0] = (numbers[0] + 1) % 97
    changed.tokens = pack(numbers)
    event.result = changed.SerializeToString()
    found = Compared(copy, new_runner()).run()
    assert found.lines[0] == f"step {changed.step}:"
    assert found.lines[1].startswith("row 0, slot ")
    assert f"[{numbers[0]}" in found.lines[1]
    assert len(found.lines) == 2


def test_a_row_that_failed_then_must_fail_now(copy: Recording, new_runner: Callable[[], Runner]) -> None:
    event = results(copy)[-2]
    changed = StepResult.FromString(event.result)
    changed.errors.add(row=0, message="the model's logits are not finite")
    event.result = changed.SerializeToString()
    found = Compared(copy, new_runner()).run()
    assert "the model's logits are not finite recorded, tokens [" in found.lines[1]


@pytest.mark.parametrize("answered", [False, True])
def test_a_step_that_raises_is_the_difference(
    copy: Recording, new_runner: Callable[[], Runner], answered: bool
) -> None:
    runner, last = new_runner(), StepResult.FromString(results(copy)[-1].result).step
    if not answered:
        del copy.events[list(copy.events).index(results(copy)[-1]) :]
    plain, compared = runner.execute, Compared(copy, runner)

    def execute(plan: StepPlan) -> StepResult:
        if len(compared._waiting) == 1 and last in [one + 1 for one in compared._waiting]:
            raise RuntimeError("a shape does not fit")
        return plain(plan)

    runner.execute = execute  # type: ignore[method-assign]
    found = compared.run()
    then = "was answered" if answered else "had no answer"
    assert found.lines == [f"step {last} raises RuntimeError('a shape does not fit'), and {then} then"]


def test_a_smaller_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(settings: WorkerSettings) -> Any:
        asked.append(settings)
        return SimpleNamespace(limits=SimpleNamespace(num_blocks=9))

    monkeypatch.setattr(tokens, "load", load)
    worker = WorkerReady(num_blocks=10, block_size=8, max_slots=3, max_step_tokens=20, max_model_len=100)
    with pytest.raises(UsageError, match=r"had 10 blocks .* has 9: QUIRE_KV_MEMORY"):
        runner_like(worker, WorkerSettings())
    (settings,) = asked
    assert (settings.block_size, settings.max_slots, settings.step_tokens) == (8, 3, 20)
    assert settings.max_model_len == 100
