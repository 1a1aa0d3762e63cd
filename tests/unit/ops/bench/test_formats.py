"""Memory and steps of checkpoint formats are measured beside Quire's own types."""

from pathlib import Path

import pytest

from ops.bench import footprint, formats
from ops.bench.rig import shapes
from ops.bench.rig.shapes import Shape


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(shapes.SHAPES, "small", Shape(256, 2, 4, 2, 512, 600, tied=True))
    monkeypatch.setattr(footprint, "KV_MEMORY", 16 << 20)
    return tmp_path


def test_memory_is_that_of_a_worker(small: Path) -> None:
    found = formats.memory("awq", "small", small)
    assert found["peak over kept"] > 1
    assert 0 < found["kept MiB"] <= 3  # 1.2 million parameters in 4 bits, and embeddings


@pytest.mark.parametrize(("form", "own"), [("awq", "w4a16"), ("int8", "QUIRE_QUANTIZATION=int8")])
def test_steps_are_measured_in_turns_with_quires_own(form: str, own: str, small: Path) -> None:
    found = formats.steps(form, "small", 3, (1, 2), small)
    assert found["beside"] == own
    for rows in ("1", "2"):
        least, middle, most = found[rows]["ratio"]
        assert 0 < least <= middle <= most
        assert found[rows]["ms"] > 0
