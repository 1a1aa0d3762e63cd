"""Packed matrix products against float64, on every instruction set that this machine has."""

import ctypes
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.linear import PackedGated, PackedLinear
from tests.support.native import TESTED, WITH_UNITS, with_team

SHAPES = ((1, 1), (5, 3), (32, 64), (33, 95), (64, 576), (95, 129), (200, 40))
"""(out, in): whole panels and broken ones, whole words and broken ones."""

ROWS = (0, 1, 2, 3, 7, 11, 12, 13, 24, 25, 70, 97, 200)
DTYPES = (torch.float32, torch.bfloat16)
REFERENCE = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


IN_PARTS = ["avx512_bf16 in parts"] if "avx512_bf16" in TESTED else []


@pytest.fixture(params=[*WITH_UNITS, *IN_PARTS], scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    library = with_team(request.param.removesuffix(" in parts"), 2)
    library.quire_bfloat16_pairs(request.param not in IN_PARTS)
    yield library
    library.quire_bfloat16_pairs(1)


@pytest.fixture
def single(kernels: ctypes.CDLL, tmp_path: Path) -> ctypes.CDLL:
    """The same kernels with a pool of one thread: a library that is loaded twice is still one."""
    again = ctypes.CDLL(shutil.copy(kernels._name, tmp_path))
    again.quire_start(1, None)
    again.quire_bfloat16_pairs(kernels.quire_bfloat16_pairs(-1))
    return again


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors are full of NaN, so that numbers that a kernel does not write are found."""
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: torch.full(*args, torch.nan, **kwargs))


def assert_close(found: Tensor, expected: Tensor, sizes: Tensor) -> None:
    """Rounded to its type once; before that, float32 sums of terms whose sizes add up to `sizes`."""
    assert found.shape == expected.shape
    unit = torch.finfo(found.dtype).eps
    allowed = unit * expected.abs() + 16 * torch.finfo(torch.float32).eps * sizes
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_product(
    kernels: ctypes.CDLL,
    shape: tuple[int, int],
    dtype: torch.dtype,
    biased: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = numbers(*shape, dtype=dtype)
    bias = numbers(shape[0], dtype=dtype, seed=1)
    linear = PackedLinear(kernels, weight, bias if biased else None)
    poisoned(monkeypatch)
    for rows in ROWS:
        x = numbers(rows, shape[1], dtype=dtype, seed=rows)
        expected = x.double() @ weight.double().T + biased * bias.double()
        sizes = x.double().abs() @ weight.double().abs().T + bias.double().abs()
        assert_close(linear(x), expected, sizes)
        residual = numbers(rows, shape[0], dtype=dtype, seed=2)
        added = residual.clone()
        linear.add_to(x, added)
        assert_close(added, expected + residual.double(), sizes + residual.double().abs())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", sorted(REFERENCE))
@pytest.mark.parametrize(("inter", "width"), [(1, 5), (16, 64), (40, 33), (129, 200)])
def test_gated(
    kernels: ctypes.CDLL,
    activation: str,
    inter: int,
    width: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = numbers(2 * inter, width, dtype=dtype) / width**0.5
    bias = numbers(2 * inter, dtype=dtype, seed=1)
    gated = PackedGated(kernels, weight, bias, activation)
    poisoned(monkeypatch)
    for rows in (0, 1, 13, 40):
        x = numbers(rows, width, dtype=dtype, seed=rows)
        gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, dim=-1)
        torch.testing.assert_close(
            gated(x).double(),
            REFERENCE[activation](gate) * up,
            rtol=2 * torch.finfo(dtype).eps,
            atol=1e-5,
        )


def test_extreme_gates(kernels: ctypes.CDLL) -> None:
    """An activation neither overflows for large numbers nor hides NaN."""
    gates = torch.tensor([-1e4, -104.0, -88.0, 0.0, 88.0, 104.0, 1e4, torch.nan])
    weight = torch.cat([gates, torch.ones(8)])[:, None]
    for activation, reference in REFERENCE.items():
        found = PackedGated(kernels, weight, None, activation)(torch.ones(1, 1))
        torch.testing.assert_close(found[0], reference(gates), equal_nan=True, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [129, 576])
def test_a_row_does_not_depend_on_the_others(kernels: ctypes.CDLL, dtype: torch.dtype, width: int) -> None:
    """Bit by bit, for every size of tile and every place in it."""
    linear = PackedLinear(kernels, numbers(70, width, dtype=dtype), None)
    x = numbers(120, width, dtype=dtype, seed=1)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in range(1, 71):
        assert torch.equal(linear(x[:rows]), alone[:rows])
    assert torch.equal(linear(x), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_nothing(kernels: ctypes.CDLL, single: ctypes.CDLL, dtype: torch.dtype) -> None:
    weight, x = numbers(200, 95, dtype=dtype), numbers(40, 95, dtype=dtype, seed=1)
    assert torch.equal(PackedLinear(kernels, weight, None)(x), PackedLinear(single, weight, None)(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_back(kernels: ctypes.CDLL, dtype: torch.dtype) -> None:
    for out, width in itertools.product((1, 33, 64), (1, 2, 129)):
        weight = numbers(out, width, dtype=dtype)
        ids = torch.arange(out).flip(0).repeat(2)
        linear = PackedLinear(kernels, weight, None)
        assert torch.equal(linear.rows(ids), weight[ids])
        assert torch.equal(linear.rows(ids.int()), weight[ids])
        assert linear.rows(ids[:0]).shape == (0, width)
        for stranger in (-1, out):
            with pytest.raises(IndexError):
                linear.rows(torch.tensor([0, stranger]))


def test_what_does_not_fit_is_refused(kernels: ctypes.CDLL) -> None:
    linear = PackedLinear(kernels, torch.ones(4, 6), None)
    with pytest.raises(ValueError, match="expected"):
        linear(torch.ones(2, 5))
    with pytest.raises(ValueError, match="expected"):
        linear(torch.ones(2, 6, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="expected"):
        linear.add_to(torch.ones(2, 6), torch.ones(3, 4))
    with pytest.raises(ValueError, match="expected"):
        linear.add_to(torch.ones(2, 6), torch.ones(4, 2).T)
    with pytest.raises(ValueError, match="equally many"):
        PackedGated(kernels, torch.ones(5, 6), None)


def test_strided_inputs(kernels: ctypes.CDLL) -> None:
    weight, x = numbers(6, 4, dtype=torch.float32), numbers(4, 3, dtype=torch.float32).T
    expected = PackedLinear(kernels, weight, None)(x.contiguous())
    assert torch.equal(PackedLinear(kernels, weight.T.contiguous().T, None)(x), expected)
