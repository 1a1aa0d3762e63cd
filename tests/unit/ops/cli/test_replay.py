"""`quire replay` on files; what a replay finds is tested in tests/unit/ops/replay."""

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.errors import CapacityError
from ops.cli.main import main
from ops.replay import tokens
from proto.recording_pb2 import Recording
from proto.worker_pb2 import StepPlan
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.recording.tape import RecordedScheduler


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording in which nothing happens."""
    limits = WorkerLimits(
        num_blocks=8, block_size=4, max_slots=2, max_model_len=16, max_step_tokens=8, vocab_size=9
    )
    scheduler = RecordedScheduler(limits, 8)
    assert scheduler.plan() is None
    recording = scheduler.tape.take().recording()
    recording.reason, recording.ended, recording.version = "it was asked for", 1.0, "0.1"
    return _write(tmp_path / "one.quire", recording)


def _write(path: Path, recording: Recording) -> Path:
    path.write_bytes(gzip.compress(recording.SerializeToString()))
    return path


def test_what_is_the_same_ends_well(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 events up to 1970-01-01 00:00:01 UTC, of Quire 0.1",
        "written because it was asked for",
        "the core: 0 steps were planned as before",
    ]


def test_a_difference_is_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = Recording.FromString(gzip.decompress(file.read_bytes()))
    recording.events.add(planned=StepPlan(step=1).SerializeToString())
    assert main(["replay", str(_write(file, recording))]) == 1
    assert "  step 1 was planned, and now there is nothing to plan" in capsys.readouterr().out


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "none.quire")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_worker_is_compared_too(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    runner = SimpleNamespace(
        fingerprint="other", host=SimpleNamespace(slots=0), close=lambda: closed.append(True)
    )
    monkeypatch.setattr(tokens, "runner_like", lambda worker, settings: runner)
    assert main(["replay", str(file), "--worker"]) == 0
    out = capsys.readouterr().out
    assert "this worker has other weights" in out
    assert "the worker (0 rows): 0 steps were computed as before" in out
    assert closed == [True]


def test_a_worker_that_cannot_start_says_why(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise CapacityError("too little memory")

    monkeypatch.setattr(tokens, "runner_like", fail)
    assert main(["replay", str(file), "--worker"]) == 2
    assert "quire replay: too little memory" in capsys.readouterr().err
