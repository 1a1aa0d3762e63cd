"""The check of the CPU kernels keeps what each part finds, and says what is wrong and what was left out."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.kernels.cpu import build
from ops.bench import cpu_check, linear, record
from ops.bench.report.sections import cpu

STEP = {
    "read_gb_s": 10.0,
    "matrix_gflop_s": 100.0,
    "steps": {"1 decodes": {"ms": 12.34, "times the floor": 1.5}},
}
KERNELS = {
    "products": {
        "instruction_set": "avx2",
        "threads": 2,
        "135M": {
            "gate_up 3072x576": {
                rows: {
                    "bf16": {"us": 100.0, "gb_s": 35.0, "gflop_s": 70.0},
                    "plain_read": {"us": 9.0, "gb_s": 36.0},
                }
                for rows in ("1", "32")
            }
        },
    },
    "attention": {
        "instruction set": "avx2",
        "threads": 2,
        **{
            kind: [
                {
                    **{"shape": "9 heads, 3 kv, 64", "rows": 8, "tokens": 1, "context": 1024},
                    **{unit: 12.0, f"{unit} of PyTorch": 3.0},
                }
            ]
            for kind, unit in (("decodes", "GB/s"), ("chunks", "GFLOP/s"))
        },
    },
}
"""Of a processor on which oneDNN multiplies no bfloat16."""


def written(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("cpu-*.json")
    return record.read(path).results


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cpu_check.main([str(tmp_path), "--minutes", "0"]) == 0
    found = written(tmp_path)
    assert "tests" in found["left out"]
    assert f"steps of int4 with {build.supported()[0]}" in found["left out"]
    assert f"answers with {build.supported()[0]}" in found["left out"]
    assert "left out: tests" in capsys.readouterr().out


def test_each_part_is_kept_and_what_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []
    held: list[str] = []

    def answer(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        if "pytest" in command:
            return subprocess.CompletedProcess(command, 1, "FAILED test_linear.py::test_a\n1 failed\n", "")
        if "--one" in command:
            name, form = command[-2:]
            asked.append((name, form))
            assert options["env"]["ONEDNN_MAX_CPU_ISA"] == cpu_check.ISA_OF_ONEDNN[name]
            if form == "int8":
                raise subprocess.CalledProcessError(
                    1, command, "", "Traceback\nRuntimeError: no such product"
                )
            return subprocess.CompletedProcess(command, 0, json.dumps(STEP), "")
        if "--kernels" in command:
            held.append(options["env"]["ONEDNN_MAX_CPU_ISA"])
            assert options["env"]["QUIRE_KERNELS"] == command[-1]
            return subprocess.CompletedProcess(command, 0, json.dumps(KERNELS), "")
        raise subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setattr(record, "machine", lambda: {"cpu": "Some CPU @ 2.50GHz"})
    monkeypatch.setattr(record, "commit", lambda: "")
    assert cpu_check.main([str(tmp_path)]) == 1
    best = build.supported()[0]
    assert (tmp_path / f"cpu-some-cpu-2-50ghz-{best}.json").exists()
    found = written(tmp_path)
    assert asked == [(name, form) for form in cpu_check.FORMS for name in build.supported()]
    assert found["steps"]["int4"][best] == STEP
    assert "int8" not in found["steps"]
    assert "FAILED test_linear.py::test_a" in found["wrong"]
    assert f"steps of int8 with {best}: RuntimeError: no such product" in found["wrong"]
    assert f"answers with {best}: not ended in time" in found["left out"]
    assert held == [cpu_check.ISA_OF_ONEDNN[name] for name in build.supported()]
    assert found["kernels"][best] == KERNELS
    printed = capsys.readouterr().out
    assert "12.3 (1.50)" in printed
    assert f"{best}, 135M gate_up 3072x576, microseconds: 1 rows bf16 100, 32 rows bf16 100" in printed
    assert f"{best}, attention, 9 heads, 3 kv, 64, 8 x 1 of 1024 tokens: 12.0 GB/s, PyTorch 3.0" in printed
    told = "\n".join(cpu.checked(found, ""))
    assert "12.3 (1.50)" in told
    assert "gate_up 3072x576" in told
    assert "plain PyTorch" in told


def test_answers_are_told_by_engine() -> None:
    rates = {
        "1": {"quire": 20.0, "transformers static": 10.0},
        "8": {"quire": 50.0, "transformers static": 9.0},
    }
    model = {"dtype": "float32", "output tokens a second": rates}
    results = {
        "steps": {},
        "kernels": {},
        "wrong": [],
        "left out": [],
        "answers": {"avx2": {"shipped": model}},
    }
    assert "avx2, shipped in float32, 8 at once: quire 50.0" in cpu_check.table(results)
    told = "\n".join(cpu.checked(results, ""))
    assert "| quire | 20.0 | 50.0 |" in told.replace("  ", " ")


def test_products_and_attention_with_every_instruction_set(monkeypatch) -> None:
    """On a processor on which oneDNN multiplies no bfloat16, too, where it was an error."""
    monkeypatch.setattr(linear, "has_onednn_bfloat16", lambda: False)
    monkeypatch.setattr(linear, "MEMORY", 1 << 20)
    monkeypatch.setattr(linear, "SECONDS", 0.0)
    monkeypatch.setattr(linear, "on_own_cores", lambda start, cores: start())
    monkeypatch.setattr(linear.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(cpu_check, "PRODUCTS", {"135M": {"out": (64, 64)}})
    monkeypatch.setattr(cpu_check, "DECODES", ((2, 16),))
    monkeypatch.setattr(cpu_check, "CHUNKS", ((8, 8),))
    before = torch.get_num_threads()
    try:
        found = cpu_check.kernels_alone(build.supported()[-1])
    finally:
        torch.set_num_threads(before)
    assert list(found["products"]["135M"]["out 64x64"]) == [str(rows) for rows in cpu_check.ROWS]
    assert "onednn_bf16" not in found["products"]["135M"]["out 64x64"]["1"]
    assert found["attention"]["decodes"][0]["GB/s"] >= 0
    assert list(cpu_check._lines(json.loads(json.dumps(found))))
