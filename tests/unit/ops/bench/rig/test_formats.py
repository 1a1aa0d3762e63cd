"""Models with random weights in checkpoint formats are read as what they are."""

from pathlib import Path

import pytest
import torch

from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.config import read_values
from gpu_worker.models.formats import read_format
from ops.bench.rig import formats, shapes
from ops.bench.rig.shapes import DEVIATION, Shape
from ops.model_directory.gguf.directory import as_directory

SMALL = Shape(256, 3, 4, 2, 512, 600, tied=False)
QUANTIZED = 7 * SMALL.layers
"""Products of the layers."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(shapes.SHAPES, "small", SMALL)
    return tmp_path


@pytest.mark.parametrize("form", [*formats.FORMATS, *formats.GGUFS])
def test_weights_are_of_the_format_and_of_usual_size(form: str, small: Path) -> None:
    made = formats.made_in(form, "small", folder=small)
    written = made.stat().st_mtime_ns
    directory = as_directory(made) if made.suffix == ".gguf" else made
    form_read = read_format(read_values(directory))
    assert form_read is not None
    with open_checkpoint(directory, form_read) as checkpoint:
        names = [name for name in checkpoint.weights() if name.endswith("_proj.weight")]
        for name in names:
            weight = checkpoint.dense(name, torch.float32)
            assert DEVIATION / 2.2 < weight.std() < DEVIATION * 1.6  # few scales differ much
            assert weight.mean().abs() < DEVIATION / 3
        assert len(names) == QUANTIZED
        assert checkpoint.widened()[0] >= sum(checkpoint.dense(name, torch.float32).numel() for name in names)
    assert formats.made_in(form, "small", folder=small).stat().st_mtime_ns == written, "written once"
