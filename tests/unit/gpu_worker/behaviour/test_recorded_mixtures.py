"""Steps of models with experts are repeated from a record on CPUs, and have the same bits then."""

from pathlib import Path

import pytest
import torch

from gpu_worker.kernels.cpu import build, library, recorded_steps
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.cpu.recorded_steps import RecordedSteps
from gpu_worker.startup.record_steps import record_steps
from tests.support.logits import watch_logits
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import Driver, make_runner


@pytest.mark.parametrize(
    "name", ["Qwen2 MoE", "Qwen3 MoE, normalized", "gpt-oss", "Qwen3.5 MoE", "Nemotron 3"]
)
def test_bits_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Qwen's have a shared expert with a gate of its own, Nemotron's one without gates."""
    monkeypatch.setattr(recorded_steps, "RECORDED", 1)
    random_model(*(MODELS | ALIKE)[name]).save_pretrained(tmp_path)
    kernels = CpuKernels(library.load(build.supported()[0], 1))
    seen, tokens = [], []
    for repeated in (False, True):
        runner = make_runner(tmp_path, kernels)
        forward = runner.forward
        forward.recorded = None
        if repeated:
            record_steps(runner, kernels)
        logits, driver = watch_logits(runner), Driver(runner)
        sequence = driver.admit(0, PROMPT)
        driver.step((sequence, len(PROMPT)))
        driver.generate(sequence, 12)
        seen.append(torch.stack([logits[key] for key in sorted(logits)]))
        tokens.append(sequence.tokens)
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 4, "a model that repeats itself shows little"
    assert torch.equal(*seen)
    assert isinstance(forward.recorded, RecordedSteps)
    assert set(forward.recorded._tapes) == {(1, len(PROMPT)), (1, 1)}
