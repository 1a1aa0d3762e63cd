"""Products of one-byte numbers are close to the exact products, and equal if quantization is exact."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import AT_ONCE, QuantizedReference
from gpu_worker.kernels.reference.rows import FP8, rotated

SHAPES = ((1, 1), (33, 95), (64, 576), (40, 130))
ROWS = (1, 5, 40)
ERRORS = {torch.int8: 0.02, FP8: 0.06}
"""Allowed error of a product of normally distributed numbers, relative to its size (2-norms)."""


@pytest.fixture(params=[torch.int8, FP8], ids=str)
def numbers(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture
def kernels(numbers: torch.dtype) -> QuantizedReference:
    return QuantizedReference(numbers)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_near(
    kernels: QuantizedReference, numbers: torch.dtype, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], seed=1, dtype=dtype)
    plain, wide = kernels.linear(weight, bias), kernels.linear(weight, dtype=torch.float32)
    for rows in ROWS:
        x = drawn(rows, shape[1], seed=rows, dtype=dtype)
        product = x.double() @ weight.double().T
        allowed = ERRORS[numbers] + (0.01 if dtype == torch.bfloat16 else 0)
        assert wide(x).dtype == torch.float32
        assert (wide(x) - product).norm() <= allowed * product.norm()
        assert plain(x).dtype == dtype
        assert (plain(x) - product - bias).norm() <= allowed * (product.norm() + bias.double().norm())
        residual = torch.ones(rows, shape[0], dtype=dtype)
        plain.add_to(x, residual)
        assert_close(residual, plain(x) + 1, atol=0.1, rtol=0.02)


def test_numbers_that_fit_are_exact(kernels: QuantizedReference, numbers: torch.dtype) -> None:
    """Each row's largest number is the type's largest, so that scales are 1."""
    largest = 448.0 if numbers == FP8 else 127.0
    weight, x = drawn(24, 50).mul(4).round(), drawn(3, 50, seed=2).mul(4).round()
    weight[:, 7], x[:, 9] = largest, -largest
    assert kernels.linear(weight)(x).equal(x @ weight.T)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(kernels: QuantizedReference, numbers: torch.dtype, activation: str) -> None:
    weight, x = drawn(2 * 48, 64), drawn(7, 64, seed=1)
    found = kernels.gated(weight, activation=activation)(x)
    expected = ReferenceKernels().gated(weight, activation=activation)(x)
    assert (found - expected).norm() < 2 * ERRORS[numbers] * expected.norm()


def test_rows_are_what_is_left_of_the_weight(kernels: QuantizedReference, numbers: torch.dtype) -> None:
    weight = drawn(50, 40)
    taken = weight[[3, 49, 3]]
    found = kernels.linear(weight, keeps_rows=True).rows(torch.tensor([3, 49, 3], dtype=torch.int32))
    largest = taken.abs().amax(1, keepdim=True)
    most = largest / 254 if numbers == torch.int8 else taken.abs() / 16 + largest / 448 / 1024
    assert ((found - taken).abs() <= most * 1.001).all()
    assert found[0].equal(found[2])


def test_many_outputs_are_quantized_in_parts() -> None:
    weight = drawn(AT_ONCE + 3, 8)
    whole = QuantizedReference(torch.int8).linear(weight)
    last = QuantizedReference(torch.int8).linear(weight[-3:])
    x = drawn(2, 8, seed=1)
    assert whole(x)[:, -3:].equal(last(x))


def test_rotation_is_its_own_inverse_and_keeps_products() -> None:
    rows = torch.randn(5, 37, generator=torch.Generator().manual_seed(0))
    turned = rotated(rows)
    torch.testing.assert_close(rotated(turned), rows)
    torch.testing.assert_close(turned @ turned.T, rows @ rows.T)
    assert torch.equal(turned[:, 32:], rows[:, 32:])


def test_one_large_activation_costs_the_others_less_where_rows_are_rotated() -> None:
    weight, x = (torch.randn(each, 576, generator=torch.Generator().manual_seed(each)) for each in (64, 9))
    x[:, 7] = 300
    expected = x @ weight.T
    errors = [
        (QuantizedReference(torch.int8, rotates).linear(weight)(x) - expected).norm()
        for rotates in (False, True)
    ]
    assert errors[1] < 0.5 * errors[0]
