"""A worker's runner on the CPU for a model that a benchmark has made."""

from pathlib import Path
from typing import Any

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner


def load_on_cpu(directory: Path, **settings: Any) -> Runner:
    """Computes in bfloat16, sequences of up to 2048 tokens. `settings`: of `WorkerSettings`, beside these."""
    usual = {"model": directory, "model_name": "m", "device": "cpu", "dtype": "bfloat16"}
    usual |= {"kv_memory": 1 << 30, "max_model_len": 2048}
    return load(WorkerSettings.model_validate(usual | settings))
