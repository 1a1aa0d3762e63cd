"""Products with codes of a checkpoint: near to float64 with their weights, on every instruction set."""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.coded import CodedGated, CodedLinear
from gpu_worker.kernels.cpu.tape import Tape
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.reference.rows import FP8
from tests.support.coded import KINDS, ROUNDED, coded
from tests.support.native import with_team

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((1, 1), (5, 3), (33, 95), (64, 576), (95, 130))
REFERENCE = CodedReference()


@pytest.fixture(params=build.supported(), scope="module")
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return with_team(request.param, 2)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def kept(rows: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Activations that are not rounded, because the largest of each row is 127."""
    drawn = torch.randint(-127, 128, (rows, width), generator=torch.Generator().manual_seed(seed))
    drawn[:, seed % width] = 127
    return drawn.to(dtype)


def exact(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and the sums of the sizes of what is added up."""
    assert isinstance(weight, CodedWeight)
    wide = weight.codes.dequantized().double()
    return x.double() @ wide.T, x.double().abs() @ wide.abs().T


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_near_to_float64(
    kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are not rounded: in float32 the results are as good as float32 is."""
    for shape in SHAPES:
        weight, bias = coded(kind, *shape, dtype, more), numbers(shape[0], dtype=dtype)
        plain, wide = CodedLinear(kernels, weight, bias), CodedLinear(kernels, weight, wide=True)
        with monkeypatch.context() as patch:  # new tensors are full of NaN: what is not written is found
            patch.setattr(torch, "empty", lambda *args, **kw: torch.full(*args, torch.nan, **kw))
            for rows in (0, 1, 2, 3, 7, 13, 40, 97):
                x = kept(rows, shape[1], dtype, seed=rows)
                expected, size = exact(weight, x)
                near = 1e-6 * size
                assert ((wide(x).double() - expected).abs() <= near).all()
                residual = torch.ones(rows, shape[0], dtype=dtype)
                plain.add_to(x, residual)
                for found, meant in ((plain(x), expected + bias), (residual, expected + bias + 1)):
                    rounded = torch.finfo(dtype).eps * (meant.abs() + 1)
                    assert ((found.double() - meant).abs() <= near + rounded).all()


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_reference(
    kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, more: bool
) -> None:
    for shape in SHAPES:
        weight, ids = coded(kind, *shape, dtype, more), torch.arange(shape[0]).flip(0).repeat(2)
        for each in (weight, weight[torch.arange(shape[0]).flip(0)]):
            found, expected = (one.rows(ids) for one in (CodedLinear(kernels, each), REFERENCE.linear(each)))
            assert found.dtype == dtype
            # A scale, or a product to which a shift is added, may be rounded once less.
            near = 1e-6 + (torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0)
            torch.testing.assert_close(found, expected, rtol=near, atol=1e-6)
            if not more:
                assert torch.equal(found, expected)
        with pytest.raises(IndexError):
            CodedLinear(kernels, weight).rows(torch.tensor([shape[0]]))


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_gated(kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, more: bool) -> None:
    for inter, width in ((1, 5), (40, 33), (129, 200)):
        weight, bias = coded(kind, 2 * inter, width, dtype, more), numbers(2 * inter, dtype=dtype)
        gated = CodedGated(kernels, weight, bias, "gelu")
        wide = CodedWeight.of(weight.codes, torch.float32)
        for rows in (1, 7, 40):
            x = kept(rows, width, dtype, seed=rows) / 256
            expected = REFERENCE.gated(wide, bias.float(), "gelu")(x.float())
            error = (gated(x).float() - expected).norm()
            assert error <= (1e-5 + torch.finfo(dtype).eps) * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_neither_on_the_others_nor_on_threads(
    kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    weight, x = coded(kind, 70, 129, dtype, more=True), numbers(110, 129, dtype=dtype, seed=1)
    linear = CodedLinear(kernels, weight)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in (*range(1, 41), 97, 110):
        assert torch.equal(linear(x[:rows]), alone[:rows])
    single = ctypes.CDLL(shutil.copy(kernels._name, tmp_path))  # a library that is loaded twice is still one
    single.quire_start(1, None)
    assert torch.equal(CodedLinear(single, weight)(x), alone)


def test_every_number_of_fp8(kernels: ctypes.CDLL) -> None:
    """Those below the smallest normal one, too. NaN is none of them: see `Whole.coded`."""
    weight, every = coded("fp8", 2, 256), torch.arange(256).to(torch.uint8)
    every[(every & 127) == 127] = 0
    weight.codes.numbers[:] = every
    expected = every.view(FP8).float() * weight.codes.scales.float().repeat_interleave(16, 1)
    assert torch.equal(CodedLinear(kernels, weight).rows(torch.tensor([0, 1])), expected)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_rounded_where_values_are_whole(kernels: ctypes.CDLL, kind: str, more: bool) -> None:
    """Each by at most half of its row's scale."""
    weight, x = coded(kind, 40, 130, more=more), numbers(9, 130, seed=1)
    (expected, size), found = exact(weight, x), CodedLinear(kernels, weight)(x).double()
    half = x.abs().amax(1, keepdim=True).double() / 127 * 0.501
    most = half * weight.codes.dequantized().abs().sum(1).double() + 1e-6 * size
    assert ((found - expected).abs() <= most).all()
    assert ((found - expected).abs() <= 1e-6 * size).all() == (kind not in ROUNDED)


def test_a_recorded_product_is_repeated(kernels: ctypes.CDLL) -> None:
    linear, x, out = CodedLinear(kernels, coded("int8", 40, 64)), numbers(3, 64), torch.zeros(3, 40)
    tape = Tape(kernels)
    with tape.recording():
        linear.add_to(x, out)
    x.copy_(numbers(3, 64, seed=1))
    out.zero_()
    tape.play()
    assert torch.equal(out, linear(x))


@pytest.mark.parametrize(("kind", "bits"), [("table", 5), ("half", 5), ("int8", 9), ("fp8", 9)])
def test_bytes(kernels: ctypes.CDLL, kind: str, bits: int) -> None:
    """Codes, and a float16 for 16 of them."""
    assert CodedLinear(kernels, coded(kind, 64, 128)).nbytes == 64 * 128 * bits // 8
