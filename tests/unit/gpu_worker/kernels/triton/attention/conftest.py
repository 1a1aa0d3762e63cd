"""Contexts are split at half their usual length, so that a short one is: the interpreter is slow."""

import pytest

from gpu_worker.kernels.triton.attention import launch


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LEAST_STRETCH", 128)
