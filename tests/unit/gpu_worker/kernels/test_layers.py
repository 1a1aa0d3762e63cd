"""Norms, rotation and the way into the pages in C++, against the same in PyTorch."""

import ctypes

import pytest
import torch
from torch.testing import assert_close

from gpu_worker.kernels.cpu.attention import Attention
from gpu_worker.kernels.cpu.layers import CpuNorm
from gpu_worker.kernels.interface import LayerCache, Rotary
from gpu_worker.kernels.reference import ReferenceKernels
from gpu_worker.kernels.reference_attention import ReferenceStep
from tests.support.paged import in_vectors, make_step

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
"""Absolute and relative."""

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
    before = torch.randn(blocks, kv_heads, block_size, dim, generator=generator).to(dtype)
    other = LayerCache(before.clone(), -before)
    own = in_vectors(other)

    query = Attention(native).begin(step).rotate_and_write(qkv, rotary, own)

    expected = ReferenceStep(step).rotate_and_write(qkv, rotary, other)
    tolerance = TOLERANCES[dtype]
    assert_close(query, expected.to(dtype), atol=tolerance, rtol=tolerance)
    expected_pages = in_vectors(other)
    assert_close(own.keys, expected_pages.keys, atol=tolerance, rtol=tolerance)
    assert own.values.equal(expected_pages.values)  # not computed with, and nothing else touched
