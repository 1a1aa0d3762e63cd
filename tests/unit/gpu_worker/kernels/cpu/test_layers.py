"""RMS norm, rotary embedding and writing to pages in C++ give the results of PyTorch."""

import ctypes
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from gpu_worker.kernels.attention import Rotary
from gpu_worker.kernels.cpu.attention import Attention
from gpu_worker.kernels.cpu.kv import FORMATS
from gpu_worker.kernels.cpu.layers import ACTIVATIONS, Activate, CpuNorm
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from tests.support.paged import in_vectors, make_step, reference_format, zeros

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
"""Allowed differences, absolute and relative."""

ROWS = [(1, 1), (1, 33), (5, 64), (20, 20)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 576, 1000])
def test_norm(native: ctypes.CDLL, size: int, tokens: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(size, generator=generator).to(dtype)
    hidden = (3 * torch.randn(tokens, size, generator=generator)).to(dtype)
    tolerance = TOLERANCES[dtype]
    out = CpuNorm(native, weight, 1e-5)(hidden)
    assert_close(out, ReferenceKernels().norm(weight, 1e-5)(hidden), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("size", [15, 576])
def test_a_weight_of_float32_multiplies_before_rounding(native: ctypes.CDLL, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    weight = 1 + 0.01 * torch.randn(size, generator=generator)
    hidden = (3 * torch.randn(40, size, generator=generator)).bfloat16()
    exact = CpuNorm(native, weight, 1e-5)(hidden.float())
    for kernels in (CpuNorm(native, weight, 1e-5), ReferenceKernels().norm(weight, 1e-5)):
        out = kernels(hidden)
        assert out.dtype == torch.bfloat16
        # Rounded once, to 8 bits; rounded twice, a weight this near to 1 would often be lost.
        assert_close(out.float(), exact, atol=0, rtol=2**-8)
        assert (out == exact.bfloat16()).float().mean() > 0.99


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", sorted({*ACTIVATIONS} - {"none"}))
@pytest.mark.parametrize("size", [1, 16, 45])
def test_activate(native: ctypes.CDLL, size: int, activation: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    every = (4 * torch.randn(19, size + 3, generator=generator)).to(dtype)
    every[7] = torch.nan
    expected, found = every.clone(), every.clone()
    for activate, rows in ((ReferenceKernels().activate, expected), (Activate(native), found)):
        activate(rows[:, :size], activation)
    assert_close(found[:, size:], every[:, size:], atol=0, rtol=0, equal_nan=True)
    tolerance = TOLERANCES[dtype]
    assert_close(found, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    for count in (1, 2, 3):  # a row has the same bits whatever lies beside it
        alone = every[:count].clone()
        Activate(native)(alone[:, :size], activation)
        assert alone.equal(found[:count])


def test_norm_of_zeros_and_of_nan(native: ctypes.CDLL) -> None:
    hidden = torch.zeros(3, 40)
    hidden[1, 20] = float("nan")
    out = CpuNorm(native, torch.ones(40), 1e-5)(hidden)
    assert out[[0, 2]].equal(torch.zeros(2, 40))
    assert out[1].isnan().all()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("dim", [2, 6, 32, 64, 80, 128])
def test_rotate_and_write(native: ctypes.CDLL, dim: int, block_size: int, dtype: torch.dtype) -> None:
    heads, kv_heads = 6, 2
    generator = torch.Generator().manual_seed(dim)
    step = make_step(ROWS, block_size, generator)
    tokens, blocks = len(step.positions), int(step.kv_entries.max()) // block_size + 1
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=generator).to(dtype)
    angles = torch.rand(64, dim // 2, generator=generator) * 7
    rotary = Rotary(angles.cos(), angles.sin())
    other = reference_format(AUTO, dtype).allocate(PageShape(kv_heads, dim, dim), blocks, block_size, zeros)
    for pages in other.tensors():
        pages.normal_(generator=generator)
    own = in_vectors(other, AUTO, dtype)

    query = Attention(native).begin(step).rotate_and_write(qkv, rotary, own)

    expected = ReferenceStep(step).rotate_and_write(qkv, rotary, other)
    tolerance = TOLERANCES[dtype]
    assert_close(query, expected.to(dtype), atol=tolerance, rtol=tolerance)
    expected_pages = in_vectors(other, AUTO, dtype)
    assert_close(own.keys, expected_pages.keys, atol=tolerance, rtol=tolerance)
    assert own.values.equal(expected_pages.values)  # not computed with, and nothing else touched


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("dim", [2, 6, 32, 64, 80, 128])
def test_rotate_and_write_into_pages_of_int8(
    native: ctypes.CDLL, dim: int, block_size: int, dtype: torch.dtype
) -> None:
    heads, kv_heads = 6, 2
    generator = torch.Generator().manual_seed(dim)
    step = make_step(ROWS, block_size, generator)
    tokens, blocks = len(step.positions), int(step.kv_entries.max()) // block_size + 1
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=generator).to(dtype)
    qkv[3] = 0
    angles = torch.rand(64, dim // 2, generator=generator) * 7
    rotary = Rotary(angles.cos(), angles.sin())
    other = reference_format("int8", dtype).allocate(PageShape(kv_heads, dim, dim), blocks, block_size, zeros)
    for pages in other.tensors():
        pages.fill_(torch.inf if pages.dtype.is_floating_point else -128)
    own = in_vectors(other, "int8", dtype)
    own = replace(own, key_scales=other.key_scales.clone(), value_scales=other.value_scales.clone())

    query = Attention(native).begin(step).rotate_and_write(qkv, rotary, own)

    expected = ReferenceStep(step).rotate_and_write(qkv, rotary, other)
    tolerance = TOLERANCES[dtype]
    assert_close(query, expected.to(dtype), atol=tolerance, rtol=tolerance)
    for found, right in ((own.key_scales, other.key_scales), (own.value_scales, other.value_scales)):
        assert found is not None
        assert right is not None
        assert_close(found, right, atol=0, rtol=1e-6)
    expected_pages = in_vectors(other, "int8", dtype)
    for numbers, same in ((own.keys, expected_pages.keys), (own.values, expected_pages.values)):
        apart = (numbers.int() - same.int()).abs()
        assert apart.max() <= 1  # a tie, which the last bit of a float decides
        assert (apart > 0).float().mean() < 0.001


def test_a_row_in_int8_is_near_and_its_nan_shows(native: ctypes.CDLL) -> None:
    generator = torch.Generator().manual_seed(1)
    step = make_step([(5, 5)], 16, generator)
    qkv = torch.randn(5, 3 * 40, generator=generator)
    qkv[2, 100] = float("nan")
    blocks = int(step.kv_entries.max()) // 16 + 1
    cache = FORMATS["int8"](torch.float32).allocate(PageShape(1, 40, 40), blocks, 16, zeros)
    still = Rotary(torch.ones(8, 20), torch.zeros(8, 20))
    Attention(native).begin(step).rotate_and_write(qkv, still, cache)
    places = (step.kv_entries // 16, 0, step.kv_entries % 16)
    assert cache.key_scales is not None
    assert cache.value_scales is not None
    # Keys lie [head_dim / 4][block_size][4], and values [block_size / 4][head_dim][4].
    in_rows = cache.keys.view(blocks, 1, 10, 16, 4).transpose(2, 3).flatten(3)
    keys = in_rows[places] * cache.key_scales[places][:, None]
    in_rows = cache.values.view(blocks, 1, 4, 40, 4).transpose(3, 4).flatten(2, 3)
    values = in_rows[places] * cache.value_scales[places][:, None]
    for found, given in ((keys, qkv[:, 40:80]), (values, qkv[:, 80:])):
        step_sizes = given.abs().amax(-1, keepdim=True) / 127
        healthy = ~step_sizes.isnan()[:, 0]
        assert ((found - given).abs() <= 0.501 * step_sizes)[healthy].all()
        assert found[~healthy].isnan().all() or healthy.all()
    assert cache.value_scales[places].isnan().tolist() == [False, False, True, False, False]
