"""The GPU check goes all its way without a GPU, and says what is wrong."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ops.bench.gpu_check import __main__ as gpu_check
from ops.bench.gpu_check import correct
from ops.bench.gpu_check.bench import Bench

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")


def test_a_dry_run_from_end_to_end(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ops.bench.gpu_check", str(tmp_path), "--dry-run"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.endswith("nothing is wrong\n")
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert (found["benchmark"], found["results"]["wrong"]) == ("gpu-check", [])
    assert found["results"]["kernels"]["cases"] == len(correct.cases(dry=True)) + 3
    assert found["results"]["tokens"] == {"greedy": True, "drawn": True, "replayed": True}
    assert [row["batch"] for row in found["results"]["steps"]] == [1, 3]
    assert all(found["results"][part] for part in ("rates", "decode", "prefill"))


@interpreted
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no GPU here")
    assert list(tmp_path.iterdir()) == []


@interpreted
def test_what_is_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "attention_error", lambda *_: float("inf"))
    bench = Bench(time.monotonic() + 60)
    correct.check(bench)
    assert len(bench.wrong) == len(correct.cases(dry=True))
    assert all(line.startswith("attention is off by inf") for line in bench.wrong)


@interpreted
def test_what_there_is_no_time_for_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check._check(tmp_path, time.monotonic() - 1) == 0
    assert "left out: decode" in capsys.readouterr().out
