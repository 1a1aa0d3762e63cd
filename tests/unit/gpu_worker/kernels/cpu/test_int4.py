"""Products with int4 weights: exact where numbers are whole, near elsewhere, on every instruction set."""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.int4 import GROUP, Int4Gated, Int4Linear
from gpu_worker.kernels.cpu.kernels import Int4Kernels
from gpu_worker.kernels.products import ScaledWeight
from gpu_worker.kernels.reference.int4 import Int4Reference
from tests.support.native import WITH_UNITS, with_team
from tests.support.scaled import scaled, shifted

SHAPES = ((1, 1), (5, 3), (32, 64), (33, 95), (64, 576), (95, 130), (200, 41))
DTYPES = (torch.float32, torch.bfloat16)
REFERENCE = Int4Reference()


@pytest.fixture(params=WITH_UNITS, scope="module")
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return with_team(request.param, 2)


@pytest.fixture
def single(kernels: ctypes.CDLL, tmp_path: Path) -> ctypes.CDLL:
    """The same kernels with a pool of one thread: a library that is loaded twice is still one."""
    again = ctypes.CDLL(shutil.copy(kernels._name, tmp_path))
    again.quire_start(1, None)
    return again


def whole(rows: int, width: int, largest: int, seed: int) -> Tensor:
    """Whole numbers that quantization keeps: scales are exactly 1, because each group has its `largest`."""
    drawn = torch.randint(1 - abs(largest), abs(largest), (rows, width), generator=torch.manual_seed(seed))
    drawn[:, seed % min(width, GROUP) :: GROUP] = largest
    drawn[:, width // GROUP * GROUP :: GROUP] = largest  # of the last group, which may be shorter
    return drawn


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
    weight = whole(*shape, largest=-8, seed=1)
    bias = torch.arange(shape[0])
    plain = Int4Linear(kernels, weight.to(dtype), None)
    biased = Int4Linear(kernels, weight.to(dtype), bias.to(dtype))
    wide = Int4Linear(kernels, weight.to(dtype), wide=True)
    poisoned(monkeypatch)
    for rows in (0, 1, 2, 3, 6, 7, 12, 13, 40, 109):
        x = whole(rows, shape[1], largest=127 if rows % 2 else -127, seed=rows)
        products = x @ weight.T
        assert torch.equal(plain(x.to(dtype)), products.to(dtype))
        assert torch.equal(wide(x.to(dtype)), products.float())
        assert torch.equal(biased(x.to(dtype)), (products.float() + bias).to(dtype))
        residual = torch.ones(rows, shape[0], dtype=dtype)
        plain.add_to(x.to(dtype), residual)
        assert torch.equal(residual, (products.float() + 1).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_those_of_the_reference(
    kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Bit by bit, whatever their size: scales may be too small or too large for a float16."""
    for exponent in range(-30, 21, 5):
        weight = (numbers(*shape, dtype=torch.float32) * 2.0**exponent).to(dtype)
        weight[0] = 0
        weight[-1, ::3] = weight[-1].abs().max()
        weight[-1, 1::3] = -weight[-1].abs().max()
        ids = torch.arange(shape[0]).flip(0).repeat(2)
        found, expected = Int4Linear(kernels, weight).rows(ids), REFERENCE.linear(weight).rows(ids)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(IndexError):
        Int4Linear(kernels, weight).rows(torch.tensor([shape[0]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_weight_that_was_quantized_before_stays_as_it_is(
    kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight = scaled(*shape, dtype)
    order = torch.arange(shape[0]).flip(0)
    for each in (weight, weight[order]):
        assert torch.equal(Int4Linear(kernels, each).rows(torch.arange(shape[0])), each)
    both = torch.cat((order, order))
    x = whole(3, shape[1], largest=127, seed=1).to(dtype)
    wide = REFERENCE.gated(ScaledWeight.of((weight + 0).float()[both], weight.scales[both]))
    gated = Int4Gated(kernels, weight[both])
    expected = wide(x.float())
    assert (gated(x).float() - expected).norm() < 0.01 * expected.norm()  # rounded again: about 0.06


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 25, 109])
def test_a_weight_with_zero_points_is_that_of_the_reference(
    kernels: ctypes.CDLL, rows: int, dtype: torch.dtype
) -> None:
    """Whole numbers, which the activations' rounding keeps. Shifts are rounded to float16."""
    back_end, order = Int4Kernels(kernels), torch.randperm(80, generator=torch.Generator().manual_seed(0))
    bias, x = numbers(80, dtype=dtype), whole(rows, 150, largest=127, seed=1).to(dtype)
    for weight in (shifted(80, 150, dtype), shifted(80, 150, dtype)[order]):
        shifts = weight.shifts.half().float()
        wide = ScaledWeight.of((weight + 0).float(), weight.scales, shifts, weight.shift_size)
        for one in ("linear", "gated"):
            found, expected = (
                getattr(each, one)(given, bias.to(given.dtype))(x.to(given.dtype)).float()
                for each, given in ((back_end, weight), (REFERENCE, wide))
            )
            rounded = 0 if dtype == torch.float32 else 2**-8
            assert (found - expected).norm() < (1e-5 + rounded) * expected.norm()
        kept = back_end.linear(weight).rows(torch.arange(80)).float()
        assert ((kept - wide).abs() <= 2**-11 * wide.shifts.abs().max() + 2 * rounded * wide.abs()).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_error_is_that_of_the_activations_steps(
    kernels: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Each activation is rounded by at most half its scale."""
    weight, x = numbers(*shape, dtype=dtype), numbers(109, shape[1], dtype=dtype, seed=1)
    reference = REFERENCE.linear(weight)
    kept = reference.rows(torch.arange(shape[0])).double().abs() * 1.01  # of bfloat16: rounded
    sizes = x.double().abs()
    half = (sizes.amax(dim=1, keepdim=True) / 127 * 0.501).expand_as(sizes)
    allowed = (half + torch.finfo(dtype).eps * sizes) @ kept.T
    found = Int4Linear(kernels, weight)(x).double()
    assert ((found - reference(x).double()).abs() <= allowed).all()


def test_one_large_activation_does_not_round_those_of_other_groups(kernels: ctypes.CDLL) -> None:
    linear = Int4Linear(kernels, numbers(64, 96, dtype=torch.float32))
    x, kept = numbers(20, 96, dtype=torch.float32, seed=1), linear.rows(torch.arange(64)).double()
    x[:, 5] = 3000
    first, rest = x.clone(), x.clone()
    first[:, GROUP:] = rest[:, :GROUP] = 0
    error = linear(x).double() - linear(first).double() - rest.double() @ kept.T
    half = rest.abs().amax(dim=1, keepdim=True).double() / 127 * 0.501
    allowed = half * kept[:, GROUP:].abs().sum(1) + 1e-6 * (x.double().abs() @ kept.abs().T)
    assert (error.abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inter", "width"), [(1, 5), (16, 64), (40, 33), (129, 200)])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_gated(kernels: ctypes.CDLL, inter: int, width: int, dtype: torch.dtype, activation: str) -> None:
    weight = (whole(2 * inter, width, largest=-8, seed=1) / 2**10).to(dtype)
    bias = numbers(2 * inter, dtype=dtype)
    gated = Int4Gated(kernels, weight, bias, activation)
    wide = REFERENCE.gated(weight.float(), bias.float(), activation)
    for rows in (0, 1, 7, 40, 109):
        x = whole(rows, width, largest=127, seed=rows).to(dtype)
        torch.testing.assert_close(
            gated(x).double(), wide(x.float()).double(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_depends_neither_on_the_others_nor_on_threads(
    kernels: ctypes.CDLL, single: ctypes.CDLL, dtype: torch.dtype
) -> None:
    weight, x = numbers(70, 129, dtype=dtype), numbers(110, 129, dtype=dtype, seed=1)
    linear = Int4Linear(kernels, weight)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in (*range(1, 41), 97, 110):
        assert torch.equal(linear(x[:rows]), alone[:rows])
    assert torch.equal(Int4Linear(single, weight)(x), alone)


def test_what_cannot_be_scaled(kernels: ctypes.CDLL) -> None:
    """A row of zeros, or of tiny numbers, gives zero. Infinity and NaN show, in their row only."""
    weight, x = numbers(40, 70, dtype=torch.float32), numbers(6, 70, dtype=torch.float32, seed=1)
    linear = Int4Linear(kernels, weight)
    x[1] = 0
    x[2] = 1e-38
    x[3, 69] = torch.nan
    x[4, 0] = torch.inf
    found = linear(x)
    assert (found[1:3] == 0).all()
    assert not found[3:5].isfinite().any()
    assert torch.equal(found[[0, 5]], linear(x[[0, 5]]))
    for column, broken in enumerate((torch.nan, torch.inf, -torch.inf, 1e6)):  # 1e6 / 8 is no float16
        weight[column, 33] = broken
    found = Int4Linear(kernels, weight)(x[[0, 5]])
    assert not found[:, :4].isfinite().any()
    assert found[:, 4:].isfinite().all()


def test_bytes(kernels: ctypes.CDLL) -> None:
    """4.5 bits a weight."""
    assert Int4Linear(kernels, torch.zeros(64, 128)).nbytes == 64 * 128 * 9 // 16
