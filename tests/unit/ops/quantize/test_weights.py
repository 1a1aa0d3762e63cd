"""Encoded weights mean what is nearest to the original, by our own readers of the format."""

import pytest
import torch

from gpu_worker.models.formats.compressed import read_compressed
from gpu_worker.models.values import Values
from ops.quantize.weights import TARGETS
from tests.unit.gpu_worker.models.formats.test_gguf import CPU

WEIGHT = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
WEIGHT[2] = 0
ROWS, COLUMNS = slice(0, 6), slice(0, 128)


def decoded(kind: str, dtype: torch.dtype) -> torch.Tensor:
    target = TARGETS[kind]
    form = read_compressed(Values(None, target.config(["lm_head"])))
    assert form is not None
    stored = form.weight("q.", target.encode(WEIGHT, dtype))
    assert stored is not None
    return stored.part(ROWS, COLUMNS, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "most"), [("int4", 0.1), ("int8", 0.008), ("fp8", 0.03)])
def test_what_is_encoded_is_near(kind: str, most: float, dtype: torch.dtype) -> None:
    found = decoded(kind, dtype)
    assert (found - WEIGHT).norm() < most * WEIGHT.norm()
    assert not found[2].any()


def test_ranges_of_4_bits_are_chosen() -> None:
    """A group whose largest weight stands alone has finer steps for the others."""
    alone = torch.full((1, 32), 0.1)
    alone[0, ::2] = -0.1
    alone[0, 5] = 1.0
    scale = TARGETS["int4"].encode(alone, torch.float32)["weight_scale"]
    assert abs(scale.item()) < 1.0 / 8
    even = torch.arange(-8.0, 8).repeat(1, 2)
    assert TARGETS["int4"].encode(even, torch.float32)["weight_scale"].item() == 1


@pytest.mark.parametrize("kind", TARGETS)
def test_scales_have_the_type_of_the_model(kind: str) -> None:
    assert TARGETS[kind].encode(WEIGHT.bfloat16(), torch.bfloat16)["weight_scale"].dtype == torch.bfloat16
