"""Products with int8 weights: exact where numbers are whole, near elsewhere, on every instruction set."""

import ctypes

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from gpu_worker.kernels.cpu.quantized import LONGEST, QuantizedGated, QuantizedLinear
from gpu_worker.kernels.products import ByteWeight
from gpu_worker.kernels.reference.quantized import QuantizedLinear as ReferenceLinear
from gpu_worker.kernels.reference.rows import rotated
from tests.support.native import WITH_UNITS, with_team

SHAPES = ((1, 1), (5, 3), (32, 64), (33, 95), (64, 576), (95, 130), (200, 41))
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=WITH_UNITS, scope="module")
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return with_team(request.param, 2)


def whole(rows: int, width: int, seed: int) -> Tensor:
    """Whole numbers that quantization keeps: scales are exactly 1, because each row has a 127."""
    numbers = torch.randint(-127, 128, (rows, width), generator=torch.Generator().manual_seed(seed))
    numbers[:, seed % width] = 127 if seed % 2 else -127
    return numbers


def as_given(weight: Tensor, dtype: torch.dtype, scale: float = 1) -> Tensor:
    """Whole numbers times a scale, as a checkpoint has them: they are not rotated."""
    return ByteWeight.of((weight * scale).to(dtype), torch.full((len(weight),), float(scale)), torch.int8)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors are full of NaN, so that numbers that a kernel does not write are found."""
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: torch.full(*args, torch.nan, **kwargs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_whole_numbers_are_exact(
    kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = whole(*shape, seed=1)
    bias = torch.arange(shape[0])
    plain = QuantizedLinear(kernels, as_given(weight, dtype), None)
    biased = QuantizedLinear(kernels, as_given(weight, dtype), bias.to(dtype))
    poisoned(monkeypatch)
    for rows in (0, 1, 2, 3, 12, 13, 70, 97):
        x = whole(rows, shape[1], seed=rows)
        products = x @ weight.T
        assert torch.equal(plain(x.to(dtype)), products.to(dtype))
        assert torch.equal(biased(x.to(dtype)), (products.float() + bias).to(dtype))
        residual = torch.ones(rows, shape[0], dtype=dtype)
        plain.add_to(x.to(dtype), residual)
        assert torch.equal(residual, (products.float() + 1).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_is_that_of_the_steps(kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Each operand is rounded by at most half its scale."""
    weight, x = numbers(*shape, dtype=dtype), numbers(40, shape[1], dtype=dtype, seed=1)
    found = QuantizedLinear(kernels, weight, None)(x).double()
    sizes, lengths = rotated(weight).double().abs(), rotated(x).double().abs()
    half, half_x = (t.amax(dim=1, keepdim=True) / 127 * 0.501 for t in (sizes, lengths))
    allowed = lengths @ half.expand_as(sizes).T + half_x.expand_as(lengths) @ (sizes + half).T
    expected = x.double() @ weight.double().T
    assert ((found - expected).abs() <= allowed + torch.finfo(dtype).eps * (expected.abs() + allowed)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inter", "width"), [(1, 5), (16, 64), (40, 33), (129, 200)])
def test_gated(
    kernels: ctypes.CDLL, inter: int, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = whole(2 * inter, width, seed=1)
    gated = QuantizedGated(kernels, as_given(weight, dtype, 2**-14), None)
    poisoned(monkeypatch)
    for rows in (0, 1, 13, 40):
        x = whole(rows, width, seed=rows)
        gate, up = (x @ weight.T / 2**14).chunk(2, dim=-1)
        torch.testing.assert_close(
            gated(x.to(dtype)).double(),
            (silu(gate.double()) * up),
            rtol=2 * torch.finfo(dtype).eps,
            atol=1e-5,
        )


def test_one_large_activation_does_not_round_all_others_to_nothing(kernels: ctypes.CDLL) -> None:
    """A scale for the whole row would be as large as most of its numbers."""
    weight, x = numbers(64, 576, dtype=torch.float32), numbers(9, 576, dtype=torch.float32, seed=1)
    x[:, 7] = 300
    expected = x.double() @ weight.double().T
    found = QuantizedLinear(kernels, weight, None)(x).double()
    others = x.double().clone()
    others[:, 7] = 0
    whole_row = ((x / (300 / 127)).round() * (300 / 127)).double() @ weight.double().T
    assert (found - expected).norm() < 0.5 * (whole_row - expected).norm()
    assert (found - expected).norm() < 0.3 * (others @ weight.double().T).norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    linear = QuantizedLinear(kernels, numbers(70, 129, dtype=dtype), None)
    x = numbers(70, 129, dtype=dtype, seed=1)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in range(1, 71):
        assert torch.equal(linear(x[:rows]), alone[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_back(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    weight = whole(33, 95, seed=1).to(dtype)
    ids = torch.arange(33).flip(0).repeat(2)
    assert torch.equal(QuantizedLinear(kernels, as_given(weight, dtype), None).rows(ids), weight[ids])
    linear = QuantizedLinear(kernels, weight, None)
    step = rotated(weight).double().abs().amax(1, keepdim=True) / 127
    near = (linear.rows(ids).double() - weight[ids].double()).norm(dim=1, keepdim=True)
    assert (near <= (0.501 + 127 * torch.finfo(dtype).eps) * step[ids] * 95**0.5).all()
    with pytest.raises(IndexError):
        linear.rows(torch.tensor([33]))


def test_rows_without_numbers_to_scale(kernels: ctypes.CDLL) -> None:
    """A row of zeros, or of tiny numbers, gives zero. Infinity and NaN show, in their row only."""
    linear = QuantizedLinear(kernels, numbers(40, 20, dtype=torch.float32), None)
    x = numbers(6, 20, dtype=torch.float32, seed=1)
    x[1] = 0
    x[2] = 1e-38
    x[3, 19] = torch.nan
    x[4, 0] = torch.inf
    found = linear(x)
    assert (found[1:3] == 0).all()
    assert not found[3:5].isfinite().any()
    assert torch.equal(found[[0, 5]], linear(x[[0, 5]]))


def test_sums_that_would_overflow_are_refused(kernels: ctypes.CDLL) -> None:
    longest = torch.ones(1, LONGEST)
    given = ByteWeight.of(longest, torch.tensor([1 / 127]), torch.int8)
    assert QuantizedLinear(kernels, given, None)(longest) == LONGEST
    with pytest.raises(ValueError, match="overflow"):
        QuantizedLinear(kernels, torch.ones(1, LONGEST + 1), None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_known_scales_are_kept(kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Also where no number of a row is 127, where one is -128, and where a scale is zero."""
    drawn = torch.Generator().manual_seed(2)
    whole = torch.randint(-100, 100, shape, generator=drawn)
    whole[0, 0] = -128
    scales = torch.rand(shape[0], generator=drawn) + 0.01
    scales[-1] = 0
    weight = ByteWeight.of((whole * scales[:, None]).to(dtype), scales, torch.int8)
    product = QuantizedLinear(kernels, weight, None)
    expected = whole * scales[:, None]
    expected[-1] = 0
    assert torch.equal(product.rows(torch.arange(shape[0])), expected.to(dtype))
    x = numbers(7, shape[1], dtype=dtype)
    plain = ByteWeight.of(weight.as_subclass(torch.Tensor), scales, torch.int8)
    reference = ReferenceLinear(plain, None, dtype, torch.int8)(x).float()
    assert (product(x) - reference).norm() <= 0.01 * reference.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rotated_rows_are_those_of_the_reference(
    kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """As near as where neither is rotated. The numbers of a rotated row that are half way may round apart."""
    weight, x = numbers(*shape, dtype=dtype), numbers(40, shape[1], dtype=dtype, seed=1)
    linear, reference = (
        QuantizedLinear(kernels, weight, None),
        ReferenceLinear(weight, None, dtype, torch.int8, True),
    )
    ids = torch.arange(shape[0])
    for found, expected in ((linear(x), reference(x)), (linear.rows(ids), reference.rows(ids))):
        assert (found.float() - expected.float()).norm() <= 0.004 * expected.float().norm()
