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
from ops.bench.gpu_check import correct, part
from ops.bench.gpu_check.bench import Bench, Rates
from ops.bench.gpu_check.parts import PARTS
from tests.support.deployment import ROOT

SPARED = """
import sys
from ops.bench.gpu_check import __main__, part
part.PRELOADED.append("tests.support.spared")
sys.exit(__main__.main(sys.argv[1:]))
"""
"""The check, with an interpreter that is spared a third of its work in every part."""

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")


@pytest.mark.timeout(960)
def test_a_dry_run_from_end_to_end(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SPARED, str(tmp_path), "--dry-run", "--minutes", "15"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "QUIRE_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=930,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.endswith("nothing is wrong\n")
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert (found["benchmark"], found["results"]["wrong"]) == ("gpu-check", [])
    tables = found["results"]
    kinds = {row["kind"]: row["cases"] for row in tables["kernels"]}
    assert kinds == {
        "attention": len(correct.cases(dry=True)),
        "writing": 1,
        "layers": 1,
        "copies": 1,
        "latent": 1,
        "bytes in pages": 1,
        "products of bytes": 1,
        "mixture": 1,
        "products of fp8 in groups": 1,
        "products of 4 bits, torch.float32": 1,
    }
    assert [row["share that is the CPU's"] for row in tables["tokens"]] == [1, 1, 1]
    assert [row["batch"] for row in tables["steps"]] == [1, 3, 1, 1, 1]
    named = (
        "rates",
        "decode",
        "prefill",
        "latent",
        "mixture",
        "sampling",
        "int4 products",
        "fp8 group products",
        "tilings",
        "mixed steps",
        "idle",
    )
    assert all(tables[part] for part in named)
    engines = {"quire", "transformers static", "transformers continuous"}
    assert {row["engine"] for row in tables["served"]} == engines
    assert not any(row["error"] for row in tables["served"])


@interpreted
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("no GPU here")
    assert list(tmp_path.iterdir()) == []


@interpreted
def test_what_is_off_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "attention_error", lambda *_: float("inf"))
    bench = Bench(time.monotonic() + 60)
    found = bench.prepare()
    correct.check(bench)
    assert len(found.wrong) == len(correct.cases(dry=True))
    assert all(line.startswith("attention is off by inf") for line in found.wrong)


@interpreted
def test_what_there_is_no_time_for_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check._check(list(PARTS), tmp_path, time.monotonic() - 1, dry=True) == 0
    assert "left out: decode" in capsys.readouterr().out


def stuck(bench: Bench) -> None:
    bench.note("table", {"row": 1})
    time.sleep(600)


def dies(bench: Bench) -> None:
    bench.note("table", {"row": 2})
    os._exit(3)


def test_what_a_part_has_found_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "GRACE", 0.0)
    dead = part.run(part.Part("dead", dies, 200), time.monotonic() + 200, Rates(), 2)
    assert dead.rows == {"table": [{"row": 2}, {"row": 2}]}
    assert dead.wrong == ["dead: ended with status 3"] * 2
    for seconds in (5, 100):  # longer for a machine that is too slow to begin sooner
        late = part.run(part.Part("late", stuck, seconds), time.monotonic() + seconds, Rates(), 1)
        if late.rows:
            break
    assert (late.rows, late.wrong) == ({"table": [{"row": 1}]}, ["late: not over in time"])
