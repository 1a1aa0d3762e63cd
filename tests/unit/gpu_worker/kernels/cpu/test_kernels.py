"""Which products weights have that a checkpoint has in 8 bits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.kernels.cpu.kernels import KeptKernels
from gpu_worker.kernels.reference.kept import kinds_kept
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.formats.compressed import read_compressed
from gpu_worker.models.values import Values
from gpu_worker.models.weights import Weights
from ops.quantize.weights import TARGETS
from tests.support.native import TESTED, with_team


@pytest.mark.parametrize("kernels", TESTED)
def test_large_activations_cost_others_nothing_with_int8(tmp_path: Path, kernels: str) -> None:
    """Two activations of a token are a hundred times as large as the others, as in models that people use."""
    drawn = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 512, generator=drawn), torch.randn(3, 512, generator=drawn)
    x[:, [70, 300]] *= 100
    weight[:, [70, 300]] = 0  # so that the product is of the others alone
    target = TARGETS["int8"]
    encoded = target.encode(weight, torch.float32)
    save_file({f"q.{end}": each for end, each in encoded.items()}, tmp_path / "model.safetensors")
    own = KeptKernels(with_team(kernels, 1))
    with open_checkpoint(tmp_path, read_compressed(Values(None, target.config([])))) as checkpoint:
        weights = Weights(checkpoint, torch.float32, torch.device("cpu"), keeps=kinds_kept(own))
        product = own.linear(weights.read("q.weight", *weight.shape))
        assert checkpoint.kept == weight.numel()
    meant = encoded["weight"] * encoded["weight_scale"]
    expected = x @ meant.T
    assert (product(x) - expected).norm() < 0.2 * expected.norm()
