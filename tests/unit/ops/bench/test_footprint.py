"""What a worker takes is measured in a process of its own."""

import pytest

from ops.bench import footprint
from ops.model_directory.settings import SHIPPED_MODEL


def test_a_start_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "KV_MEMORY", 64 << 20)
    found = footprint.results(SHIPPED_MODEL, "float32", rounds=1)
    assert found["pages MiB"] == 64
    assert 25 < found["weights MiB"] < 35  # 7.3 million parameters
    assert 0 < found["beside weights and pages MiB"] < 600
    assert found["peak MiB"] > found["weights MiB"] + 64
    assert 1 < found["loading, peak over weights"] < 10  # so small a model is not most of it
    assert 0 < found["seconds to load"] < 600


def test_quantized_weights_are_counted_as_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "KV_MEMORY", 64 << 20)
    found = footprint.results(SHIPPED_MODEL, "float32", rounds=1, quantization="int8")
    assert found["quantization"] == "int8"
    assert 6.5 < found["weights MiB"] < 12
