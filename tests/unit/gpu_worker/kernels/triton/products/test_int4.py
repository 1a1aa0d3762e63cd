"""Products with weights of 4 bits give the reference's results, for every size of a tile."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.reference.int4 import Int4Reference, dequantized, quantize_groups
from gpu_worker.kernels.triton.kernels import Int4Triton
from gpu_worker.kernels.triton.products.int4 import MOST_TOKENS, TritonInt4Linear, fitting, tiling
from gpu_worker.kernels.triton.products.int4_tile import packed
from tests.support.scaled import scaled, shifted
from tests.unit.gpu_worker.behaviour.test_greedy import PROMPT
from tests.unit.gpu_worker.conftest import Driver, make_runner

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 2e-3}
"""Allowed differences: the order of sums differs, and the interpreter truncates to bfloat16."""


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def kernels() -> Int4Triton:
    return Int4Triton(torch.device("cpu"))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("rows", "outs", "size"),
    [
        (1, 70, 95),
        (3, 16, 128),
        (9, 33, 600),
        (16, 5, 1),
        (17, 70, 300),
        (40, 129, 161),
        (MOST_TOKENS + 1, 65, 130),
    ],
)
def test_linear(dtype: torch.dtype, rows: int, outs: int, size: int) -> None:
    weight, bias = drawn(outs, size, dtype=dtype), drawn(outs, seed=1, dtype=dtype)
    x = drawn(rows, size, seed=2, dtype=dtype) / size**0.5
    x[-1] = 0
    x[0, 0] = torch.nan
    right, found = Int4Reference().linear(weight, bias), kernels().linear(weight, bias)
    results, near = found(x), {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype], "equal_nan": True}
    assert results.dtype == dtype
    assert results[0].isnan().all()
    assert_close(results, right(x), **near)
    assert not results[1:].isnan().any()
    residual, other = torch.full((rows, outs), 3.0, dtype=dtype), torch.full((rows, outs), 3.0, dtype=dtype)
    found.add_to(x, residual)
    right.add_to(x, other)
    assert_close(residual, other, **near)


def test_without_bias_and_gated() -> None:
    weight, x = drawn(2 * 48, 64), drawn(3, 64, seed=1)
    for right, found in (
        (Int4Reference().linear(weight), kernels().linear(weight)),
        (Int4Reference().gated(weight), kernels().gated(weight)),
    ):
        assert_close(found(x), right(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
def test_every_tiling(rows: int) -> None:
    """Tilings of many outputs too, which a GPU of one processor chooses; strips that splits do not divide."""
    weight, bias = drawn(300, 1100, dtype=torch.bfloat16), drawn(300, seed=1, dtype=torch.bfloat16)
    x = drawn(rows, 1100, seed=1, dtype=torch.bfloat16) / 30
    right, sums = Int4Reference().linear(weight, bias), torch.ones((3, rows, 300), dtype=torch.bfloat16)
    right.add_to(x, sums[0])
    for processors, residual in zip((1, 132), sums[1:], strict=True):
        TritonInt4Linear(weight, bias, processors).add_to(x, residual)
        assert_close(residual, sums[0], atol=0.02, rtol=0.02)
    chosen = [tiling(rows, 300, 9, processors) for processors in (1, 132)]
    assert chosen[0] != chosen[1]
    assert (chosen[1].splits == 2) == (rows > 16)


def test_a_gpu_is_full_whatever_the_number_of_tokens() -> None:
    """Products of a Llama of 8 billion weights have five warps or more for each of 132 processors."""
    for tokens in (1, 8, 16, 17, 32, 33, 64, 65, 128, 129, MOST_TOKENS):
        for outs, strips in ((6144, 32), (4096, 32), (28_672, 32), (4096, 112)):
            chosen = tiling(tokens, outs, strips, 132)
            tiles = -(-tokens // chosen.tokens) * -(-outs // chosen.outs)
            assert tiles * chosen.splits * chosen.warps >= 5 * 132
            assert chosen.splits <= strips // 4


@pytest.mark.parametrize(
    ("tokens", "processors", "stages"), [(16, 1, 2), (16, 132, 3), (32, 132, 5), (64, 1, 2), (64, 132, 3)]
)
def test_float32_has_fewer_stages_where_there_is_less_memory(
    tokens: int, processors: int, stages: int
) -> None:
    """What a product takes was read off compiled kernels: `tests.support.compiled` prints it."""
    usual = tiling(tokens, 384, 16, processors)
    assert fitting(usual, 2, 99 << 10) == fitting(usual, 4, 163 << 10) == usual
    assert fitting(usual, 4, 99 << 10) == replace(usual, stages=stages)


def test_rows_do_not_depend_on_those_beside_them() -> None:
    product = kernels().linear(drawn(70, 700))
    x = drawn(16, 700, seed=1)
    every = product(x)
    x[3:9] = torch.nan
    assert product(x)[[0, 2, 9, 15]].equal(every[[0, 2, 9, 15]])


@pytest.mark.parametrize(
    ("dtype", "exponent", "offset"), [(torch.bfloat16, 0x4300, 136), (torch.float16, 0x6400, 1032)]
)
def test_bits_under_an_exponent_are_the_number(dtype: torch.dtype, exponent: int, offset: int) -> None:
    """The bits that compiled kernels unpack, which the interpreter does not."""
    bits = torch.arange(16, dtype=torch.int16)
    assert ((bits | exponent).view(dtype) - offset).equal(torch.arange(-8, 8).to(dtype))


def test_where_weights_and_scales_lie() -> None:
    weight = drawn(5, 200)
    words, scales = packed(weight)
    numbers, strip_scales = quantize_groups(weight)
    assert words.shape == (2, 5, 32)
    assert scales.shape == (2, 5)
    for strip, out, group, number in ((0, 0, 0, 0), (0, 4, 3, 31), (1, 2, 1, 5), (1, 3, 2, 7)):
        bits = int(words[strip, out, number]) >> 4 * group & 15
        assert bits - 8 == numbers[out, strip * 128 + group * 32 + number]
    found = scales.t().contiguous().view(torch.float16)[:, : strip_scales.shape[1]]
    assert found.equal(strip_scales)
    assert (int(words[1, 0, 8]) >> 8 & 15) - 8 == 0  # the 201st weight, which there is not


def test_rows_are_what_is_left_of_the_weight() -> None:
    weight = drawn(50, 130)
    found = kernels().linear(weight).rows(torch.tensor([3, 49, 3]))
    assert_close(found, dequantized(*quantize_groups(weight))[[3, 49, 3]], atol=0, rtol=0)


def test_a_weight_that_was_quantized_before_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.kernels.triton.products.int4.AT_ONCE", 7)
    weight = scaled(20, 160)
    assert torch.equal(kernels().linear(weight).rows(torch.arange(20)), weight)
    hidden, moved = drawn(3, 160, seed=1), shifted(20, 160)
    assert_close(kernels().linear(moved)(hidden), Int4Reference().linear(moved)(hidden), atol=1e-4, rtol=1e-4)


def test_the_head_stays_at_eight_bits() -> None:
    weight, x = drawn(20, 40, dtype=torch.bfloat16), drawn(3, 40, seed=1, dtype=torch.bfloat16)
    right, found = (
        each.linear(weight, dtype=torch.float32, keeps_rows=True) for each in (Int4Reference(), kernels())
    )
    assert_close(found(x), right(x), atol=1e-5, rtol=1e-5)
    assert (found.rows(torch.arange(20)) - weight).abs().max() < 0.05


def test_many_tokens_take_the_widened_matrix() -> None:
    product = kernels().linear(drawn(20, 40))
    x = drawn(MOST_TOKENS + 1, 40, seed=1)
    assert_close(product(x)[:MOST_TOKENS], product(x[:MOST_TOKENS]), atol=1e-5, rtol=1e-5)


def test_a_model_says_what_it_says_over_the_reference(tiny: SimpleNamespace) -> None:
    """Greedy tokens, after a prompt in two chunks."""
    drivers = [Driver(make_runner(tiny.directory, each)) for each in (Int4Reference(), kernels())]
    right, found = (driver.generate(driver.admit(0, PROMPT), 4, chunk=7) for driver in drivers)
    assert found == right
    assert len(set(found)) > 2, "a model that repeats itself shows little"
