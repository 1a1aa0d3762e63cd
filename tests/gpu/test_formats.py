"""Quantized checkpoints on a GPU: near to what their weights mean, whichever of them are kept as they are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.kernels.triton.kernels import KeptTriton, TritonKernels
from tests.support import checkpoints
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import (
    AS_CODES,
    BY_DEFAULT,
    MODELS,
    WIDE,
    logits_of,
    random_model,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

FORMATS: dict[str, Any] = BY_DEFAULT | AS_CODES
ROUNDED = 0.15
"""What a product may be off by at most, relative (2-norms), where it rounds activations to one byte."""


@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_near_to_what_is_meant(tmp_path: Path, name: str) -> None:
    model, encoder, config = FORMATS[name]
    architecture, changes = MODELS[model]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    write = checkpoints.write_stacked if model == "gpt-oss" else checkpoints.write
    stored, meant = write(tmp_path / "source", tmp_path, encoder, config)
    device = torch.device("cuda")
    found, expected = logits_of(stored, KeptTriton(device)), logits_of(meant, TritonKernels(device))
    assert (found - expected).norm() < ROUNDED * expected.norm()
