"""Products of one-byte numbers give the reference's results."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton.kernels import QuantizedTriton

pytestmark = pytest.mark.usefixtures("poisoned")

NUMBERS = [torch.int8, FP8]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def both(numbers: torch.dtype) -> tuple[QuantizedReference, QuantizedTriton]:
    return QuantizedReference(numbers), QuantizedTriton(torch.device("cpu"), numbers)


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(numbers: torch.dtype, dtype: torch.dtype) -> None:
    weight, bias, x = drawn(70, 95, dtype=dtype), drawn(70, seed=1, dtype=dtype), drawn(6, 95, seed=2)
    x = x.to(dtype)
    x[3] = 0
    x[4, 5] = torch.nan
    right, found = (kernels.linear(weight, bias) for kernels in both(numbers))
    results = found(x)
    assert results.dtype == dtype
    assert results[3].equal(bias)
    assert results[4].isnan().all()
    assert not results[5].isnan().any()
    # A tie among the activations may be rounded the other way; the interpreter cuts bfloat16 off.
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    assert_close(results, right(x), atol=tolerance, rtol=tolerance, equal_nan=True)
    residual, other = torch.full((6, 70), 3.0, dtype=dtype), torch.full((6, 70), 3.0, dtype=dtype)
    found.add_to(x, residual)
    right.add_to(x, other)
    assert_close(residual, other, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_more_tokens_than_are_filled_up_and_wide_results(numbers: torch.dtype) -> None:
    weight, x = drawn(5, 32, dtype=torch.bfloat16), drawn(33, 32, seed=1, dtype=torch.bfloat16)
    right, found = (kernels.linear(weight, dtype=torch.float32)(x) for kernels in both(numbers))
    assert found.dtype == torch.float32
    assert_close(found, right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_gated(numbers: torch.dtype) -> None:
    weight, x = drawn(2 * 48, 64), drawn(3, 64, seed=1)
    right, found = (kernels.gated(weight)(x) for kernels in both(numbers))
    assert_close(found, right, atol=1e-4, rtol=1e-4)
    gated = both(numbers)[1].gated(weight)
    assert gated.activated(gated.parts(x)).equal(found)
