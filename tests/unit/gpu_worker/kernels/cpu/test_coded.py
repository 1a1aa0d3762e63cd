"""Products with codes of a checkpoint: near to float64 with their weights, on every instruction set."""

import ctypes
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.cpu.coded import CodedGated, CodedLinear
from gpu_worker.kernels.cpu.tape import Tape
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.models.formats.gguf import GgufWeight
from tests.support.coded import KINDS, ROUNDED, coded
from tests.support.gguf import random_blocks
from tests.support.native import WITH_UNITS, with_team

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((1, 1), (5, 3), (33, 95), (64, 576), (95, 130))
SIZES = (16, 64, 256, 1024)
"""Inputs of a group: matrix units multiply those of a whole step, and of fp8 those of a whole row, too."""
REFERENCE = CodedReference()


@pytest.fixture(params=WITH_UNITS)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return with_team(request.param, 2)


everywhere = pytest.mark.parametrize("kernels", WITH_UNITS, indirect=True)
"""Each case with all instruction sets, one after the other, so that it is made once."""


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def kept(rows: int, width: int, dtype: torch.dtype, seed: int, order: Tensor | None = None) -> Tensor:
    """Activations that are not rounded, because the largest of each 8 is 127, in the order of codes."""
    drawn = torch.randint(-127, 128, (rows, width), generator=torch.Generator().manual_seed(seed))
    drawn[:, seed % 8 :: 8] = drawn[:, -1] = 127
    if order is not None:
        drawn[:, order.long()] = drawn.clone()
    return drawn.to(dtype)


def exact(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and the sums of the sizes of what is added up."""
    assert isinstance(weight, CodedWeight)
    wide = weight.codes.dequantized().double()
    return x.double() @ wide.T, x.double().abs() @ wide.abs().T


Product = tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]
"""A weight, a bias, and for each number of rows x, x times the weight, and the sums of sizes."""


@lru_cache(maxsize=1)
def products(kind: str, dtype: torch.dtype, more: bool, size: int) -> list[Product]:
    """Of each shape."""
    found = []
    for shape in SHAPES:
        weight = coded(kind, *shape, dtype, more, size)
        order = weight.codes.order
        every = [kept(rows, shape[1], dtype, rows, order) for rows in (0, 1, 2, 3, 7, 13, 40, 109)]
        found.append((weight, numbers(shape[0], dtype=dtype), [(x, *exact(weight, x)) for x in every]))
    return found


@everywhere
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_near_to_float64(
    kernels: ctypes.CDLL,
    kind: str,
    dtype: torch.dtype,
    more: bool,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are not rounded: in float32 the results are as good as float32 is."""
    for weight, bias, each in products(kind, dtype, more, size):
        plain, wide = CodedLinear(kernels, weight, bias), CodedLinear(kernels, weight, wide=True)
        with monkeypatch.context() as patch:  # new tensors are full of NaN: what is not written is found
            patch.setattr(torch, "empty", lambda *args, **kw: torch.full(*args, torch.nan, **kw))
            for x, expected, sums in each:
                near = 1e-6 * sums
                assert ((wide(x).double() - expected).abs() <= near).all()
                residual = torch.ones(expected.shape, dtype=dtype)
                plain.add_to(x, residual)
                for found, meant in ((plain(x), expected + bias), (residual, expected + bias + 1)):
                    rounded = torch.finfo(dtype).eps * (meant.abs() + 1)
                    assert ((found.double() - meant).abs() <= near + rounded).all()


@pytest.mark.parametrize("size", [8, 24, 40, 72, 224])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_begin_within_a_vector(kernels: ctypes.CDLL, kind: str, size: int) -> None:
    """What lies behind a row, or behind its last unit, are numbers of the product before."""
    before = CodedLinear(kernels, coded(kind, 33, 1024, size=512))
    for width in (size + 16, 3 * size - 8, 3 * size + 1):
        weight = coded(kind, 33, width, more=True, size=size)
        linear = CodedLinear(kernels, weight)
        for rows in (1, 7, 17, 61):
            before(torch.full((61, 1024), 127.0))
            x = kept(rows, width, torch.float32, rows, weight.codes.order)
            expected, sums = exact(weight, x)
            assert ((linear(x).double() - expected).abs() <= 1e-6 * sums).all()


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
            x = kept(rows, width, dtype, rows, weight.codes.order) / 256
            expected = REFERENCE.gated(wide, bias.float(), "gelu")(x.float())
            error = (gated(x).float() - expected).norm()
            assert error <= (1e-5 + torch.finfo(dtype).eps) * expected.norm()


@pytest.mark.parametrize(("size", "more"), [(16, True), (32, True), (128, False), (1024, False)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_neither_on_the_others_nor_on_threads(
    kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, size: int, more: bool, tmp_path: Path
) -> None:
    weight, x = coded(kind, 70, 545, dtype, more, size), numbers(110, 545, dtype=dtype, seed=1)
    linear = CodedLinear(kernels, weight)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in (*range(1, 41), 65, 97, 110):
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
    """Each by at most half of its row's scale, and not where the scale is another group's."""
    weight, x = coded(kind, 40, 130, more=more), numbers(9, 130, seed=1)
    (expected, size), found = exact(weight, x), CodedLinear(kernels, weight)(x).double()
    half = x.abs().amax(1, keepdim=True).double() / 127 * 0.501
    most = half * weight.codes.dequantized().abs().sum(1).double() + 1e-6 * size
    assert ((found - expected).abs() <= most).all()
    assert ((found - expected).abs() <= 1e-6 * size).all() == (kind not in ROUNDED)


@pytest.mark.parametrize("kind", sorted(ROUNDED))
def test_one_large_activation_does_not_round_those_of_other_groups(kernels: ctypes.CDLL, kind: str) -> None:
    """Those with which it shares a scale are lost. A channel's own scale has parts of 64 inputs."""
    for size in (32, 1024):
        weight, x = coded(kind, 40, 256, size=size), numbers(20, 256, seed=1)
        x[:, 5] = 3000
        most = x[:, 64:].abs().amax(1, keepdim=True).double() / 127 * 0.501
        rest, near = CodedLinear(kernels, weight), x.clone()
        near[:, 64:] = 0
        (expected, sizes), sums = exact(weight, x), weight.codes.dequantized().abs()[:, 64:].sum(1).double()
        (first, _), begin = exact(weight, near), rest(near).double()
        error = (rest(x).double() - expected) - (begin - first)
        assert (error.abs() <= most * sums + 1e-6 * sizes).all()


def test_a_recorded_product_is_repeated(kernels: ctypes.CDLL) -> None:
    linear, x, out = CodedLinear(kernels, coded("int8", 40, 64)), numbers(3, 64), torch.zeros(3, 40)
    tape = Tape(kernels)
    with tape.recording():
        linear.add_to(x, out)
    x.copy_(numbers(3, 64, seed=1))
    out.zero_()
    tape.play()
    assert torch.equal(out, linear(x))


@pytest.mark.parametrize(
    ("kind", "bits"),
    [("table", 5), ("half", 5), ("wide", 5), ("five", 5.5), ("six", 7), ("int8", 9), ("fp8", 9)],
)
def test_bytes(kernels: ctypes.CDLL, kind: str, bits: float) -> None:
    """Codes, and a float16 for a group of them."""
    assert CodedLinear(kernels, coded(kind, 64, 128)).nbytes == 64 * 128 * bits / 8


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        *[("Q5_0", 5.5), ("Q5_1", 6), ("Q8_0", 8.5), ("Q2_K", 5.25), ("Q3_K", 4.625), ("Q5_K", 5.75)],
        *[("Q6_K", 6.625), ("IQ4_NL", 4.5), ("IQ4_XS", 4.375), ("TQ1_0", 4.0625), ("TQ2_0", 4.0625)],
        *[("IQ1_S", 4.375), ("IQ1_M", 4.625), ("IQ2_XXS", 4.375), ("IQ2_XS", 4.625), ("IQ2_S", 4.625)],
        *[("IQ3_XXS", 4.375), ("IQ3_S", 4.375)],
    ],
)
def test_bits_of_a_weight_of_gguf(kernels: ctypes.CDLL, kind: str, bits: float) -> None:
    """docs/models.md names them."""
    codes = GgufWeight(kind, random_blocks(kind, 64, 768)).codes(slice(0, 64), slice(0, 768))
    assert codes is not None
    assert CodedLinear(kernels, CodedWeight.of(codes, torch.float32)).nbytes == 64 * 768 * bits / 8


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["five", "six", "whole", "half"])
def test_fewer_bits_compute_what_bytes_do(
    kernels: ctypes.CDLL, kind: str, dtype: torch.dtype, more: bool
) -> None:
    """Bit by bit, because the sums of a group are the same integers."""
    for shape in SHAPES:
        weight = coded(kind, *shape, dtype, more)
        few, octets = (CodedLinear(kernels, each) for each in (weight, in_bytes(weight)))
        ids = torch.arange(shape[0])
        assert torch.equal(few.rows(ids), octets.rows(ids))
        for rows in (1, 2, 3, 7, 13, 40, 109):
            x = numbers(rows, shape[1], dtype=dtype, seed=rows)
            assert torch.equal(few(x), octets(x)[:, : shape[0]])


def in_bytes(weight: Tensor) -> CodedWeight:
    """The same weight in int8, and one more output, whose values need them."""
    assert isinstance(weight, CodedWeight)
    codes, table = weight.codes, weight.codes.table
    if table is not None:
        unit = 1.0 if torch.equal(table, table.round()) else 0.5
        values = (table / unit).to(torch.int8).view(torch.uint8)[codes.numbers.int()]
        codes = replace(codes, numbers=values, scales=codes.scales * unit, kind="int8", table=None)
    codes = codes[[*range(len(codes.numbers)), 0]]
    codes.numbers[-1] = 127
    return CodedWeight.of(codes, weight.dtype)


@pytest.mark.parametrize(
    ("lowest", "highest", "bits"), [(-32, 31, 6), (-32, -1, 5), (-33, 30, 8), (1, 32, 8)]
)
def test_values_that_need_fewer_bits(kernels: ctypes.CDLL, lowest: int, highest: int, bits: int) -> None:
    """The largest products of them, too. Values of 6 bits are between -32 and 31."""
    weight = coded("five", 64, 128)
    drawn = torch.randint(lowest, highest + 1, (64, 128), generator=torch.Generator().manual_seed(0))
    drawn[0], drawn[1] = lowest, highest
    weight.codes.numbers[:] = drawn.to(torch.uint8)
    linear = CodedLinear(kernels, weight)
    assert linear.nbytes == 64 * 128 * (bits + 0.5) / 8
    for rows in (1, 9):
        for x in (
            kept(rows, 128, torch.float32, 0),
            torch.full((rows, 128), 127.0),
            torch.full((rows, 128), -127.0),
        ):
            expected, size = exact(weight, x)
            assert ((linear(x).double() - expected).abs() <= 1e-6 * size).all()


@pytest.mark.parametrize(("kind", "octets"), [(torch.int8, 1), (torch.float16, 2)])
def test_scales_and_shifts_of_fewer_bits(kernels: ctypes.CDLL, kind: torch.dtype, octets: int) -> None:
    codes, x, ids = coded("six", 40, 96, more=True).codes, numbers(9, 96), torch.arange(40)
    assert codes.factors is not None
    chance = torch.Generator().manual_seed(0)
    scales, shifts = (torch.randint(-128, 128, codes.scales.shape, generator=chance) for _ in range(2))
    few, more = (
        CodedLinear(kernels, CodedWeight.of(replace(drawn, shift_factors=codes.factors / 3), torch.float32))
        for drawn in (
            replace(codes, scales=scales.to(each), shifts=shifts.to(each)) for each in (kind, torch.float32)
        )
    )
    assert torch.equal(few(x), more(x))
    assert torch.equal(few.rows(ids), more.rows(ids))
    whole = replace(codes, scales=scales.float(), shifts=shifts * codes.factors.repeat_interleave(2, 1) / 3)
    expected = CodedLinear(kernels, CodedWeight.of(whole, torch.float32))
    torch.testing.assert_close(few(x), expected(x), rtol=1e-4, atol=1e-3)
    assert more.nbytes - few.nbytes == 2 * (4 - octets) * 64 * 6  # padded to whole panels
