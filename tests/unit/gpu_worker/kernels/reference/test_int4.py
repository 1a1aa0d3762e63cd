"""Weights of 4 bits: quantization, dequantization and products."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.reference import int4
from gpu_worker.kernels.reference.int4 import GROUP, Int4Reference, dequantized, quantize_groups
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import AT_ONCE, QuantizedLinear
from tests.support.scaled import scaled, shifted

SHAPES = ((1, 1), (33, 95), (64, 576), (40, 130))
ERROR = 0.14
"""Allowed error of a product of normally distributed numbers, relative to its size (2-norms)."""


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def test_the_largest_of_a_group_is_kept_whatever_its_sign() -> None:
    weight = torch.tensor([[4.0, -2.0, 1.0, 3.5], [-4.0, 2.0, -1.0, -3.5], [4.0, -4.0, 0.0, 0.2]])
    numbers, scales = quantize_groups(weight)
    assert scales.tolist() == [[-0.5], [0.5], [-0.5]]
    assert numbers.tolist() == [[-8, 4, -2, -7], [-8, 4, -2, -7], [-8, 7, 0, 0]]
    assert numbers.dtype == torch.int8
    assert scales.dtype == torch.float16


def test_ties_are_rounded_to_even_and_by_the_rounded_scale() -> None:
    numbers, _ = quantize_groups(torch.tensor([[-8.0, 0.5, 1.5, 2.5, -0.5, 7.5]]))
    assert numbers.tolist() == [[-8, 0, 2, 2, 0, 7]]
    # 2049 / 8 is 256.125, which float16 has as 256.0 or 256.25: rounded to even, 256.
    numbers, scales = quantize_groups(torch.tensor([[-2049.0, 384.0, 384.1]]))
    assert scales.tolist() == [[256.0]]
    assert numbers.tolist() == [[-8, 2, 2]]


def test_every_group_has_its_own_scale_and_the_last_may_be_short() -> None:
    weight = torch.cat((torch.full((2, GROUP), 80.0), torch.full((2, 3), -0.08)), dim=1)
    numbers, scales = quantize_groups(weight)
    assert numbers.eq(-8).all()
    assert_close(scales.float(), torch.tensor([[-10.0, 0.01]] * 2), atol=1e-5, rtol=1e-3)
    assert_close(dequantized(numbers, scales), weight, atol=0, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_that_was_quantized_before_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(int4, "AT_ONCE", 7)
    weight, order = scaled(20, 70, dtype), torch.randperm(20)
    for each, scales in ((weight, weight.scales), (weight[order], weight.scales[order])):
        numbers, found = quantize_groups(each)
        assert torch.equal(found, scales)
        assert torch.equal(dequantized(numbers, found).to(dtype), each)
    rounded = dequantized(*quantize_groups(weight + 0)).to(dtype)
    assert not torch.equal(rounded, weight)  # without its scales it would be rounded again


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01)])
def test_a_weight_with_zero_points_stays_as_it_is(dtype: torch.dtype, error: float) -> None:
    weight, order = shifted(20, 150, dtype), torch.randperm(20)
    hidden = drawn(3, 150, dtype=dtype)
    for each in (weight, weight[order]):
        plain = (each + 0).float()
        product, expected = Int4Reference().linear(each), hidden.float() @ plain.T
        rows = torch.tensor([3, 19, 3])
        assert (product.rows(rows) - plain[rows]).norm() <= error * plain[rows].norm()
        assert (product(hidden) - expected).norm() <= error * expected.norm()
        residual = torch.ones_like(expected).to(dtype)
        product.add_to(hidden, residual)
        assert (residual - expected - 1).norm() <= error * expected.norm()
    both = weight[torch.cat((order, order))]
    gated = Int4Reference().gated(both)(hidden)
    expected = ReferenceKernels().gated((both + 0).float())(hidden.float())
    assert (gated - expected).norm() <= 3 * error * expected.norm()


def test_nothing_is_left_of_groups_too_small_for_float16() -> None:
    numbers, scales = quantize_groups(torch.tensor([[0.0, 0.0], [1e-8, -2e-8], [1e-5, -2e-5]]))
    assert numbers[:2].eq(0).all()
    assert scales[:2].eq(0).all()
    assert numbers[2].tolist() == [4, -8]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_shows(wrong: float) -> None:
    weight = drawn(3, 40)
    weight[1, 35] = wrong
    product = Int4Reference().linear(weight)(drawn(2, 40, seed=1))
    assert product[:, 1].isnan().all()
    assert product[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_near(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], seed=1, dtype=dtype)
    product = Int4Reference().linear(weight, bias)
    for rows in (1, 5, 40):
        x = drawn(rows, shape[1], seed=rows, dtype=dtype)
        expected = x.double() @ weight.double().T + bias
        found = product(x)
        assert found.dtype == dtype
        assert (found - expected).norm() <= ERROR * expected.norm()
        residual = torch.ones(rows, shape[0], dtype=dtype)
        product.add_to(x, residual)
        assert_close(residual, found + 1, atol=0.1, rtol=0.02)


def test_numbers_that_fit_are_exact() -> None:
    weight = drawn(24, 50).mul(2).round().clamp(-7, 7)
    weight[:, ::GROUP] = -8
    x = drawn(3, 50, seed=2).mul(4).round()
    assert Int4Reference().linear(weight)(x).equal(x @ weight.T)
    assert Int4Reference().linear(weight).rows(torch.tensor([5, 0])).equal(weight[[5, 0]])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(activation: str) -> None:
    weight, x = drawn(2 * 48, 64), drawn(7, 64, seed=1)
    left = dequantized(*quantize_groups(weight))
    found = Int4Reference().gated(weight, activation=activation)(x)
    assert_close(found, ReferenceKernels().gated(left, activation=activation)(x), atol=1e-4, rtol=1e-4)


def test_the_head_and_embeddings_stay_at_eight_bits() -> None:
    weight = drawn(20, 40, dtype=torch.bfloat16)
    for found in (
        Int4Reference().linear(weight, dtype=torch.float32),
        Int4Reference().linear(weight, keeps_rows=True),
    ):
        assert isinstance(found, QuantizedLinear)
        assert (found.rows(torch.arange(20)) - weight).abs().max() < weight.abs().max() / 100


def test_many_outputs_are_rounded_in_parts() -> None:
    weight = drawn(AT_ONCE + 3, 8)
    numbers, scales = quantize_groups(weight)
    last = quantize_groups(weight[-3:])
    assert numbers[-3:].equal(last[0])
    assert scales[-3:].equal(last[1])
