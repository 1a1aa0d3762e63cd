"""Norms, activations, rotation, the way into the pages and copies of blocks, against plain PyTorch."""

import pytest
import torch
from torch.testing import assert_close

from gpu_worker.kernels.attention import LayerCache, Rotary
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.products import ByteWeight, Expert, ScaledWeight
from gpu_worker.kernels.reference.activations import ACTIVATIONS
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.kernels import KeptTriton, TritonKernels
from gpu_worker.kernels.triton.mixture.int4_mixture import Int4Mixture
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from gpu_worker.kernels.triton.norm import TritonNorm, gated
from tests.support.paged import make_step, zeros
from tests.support.scaled import scaled_fp4
from tests.support.triton_paged import kv_format

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 2e-2}
"""Absolute and relative. (The interpreter cuts bfloat16 off where a GPU rounds.)"""

ROWS = [(1, 1), (1, 33), (5, 64), (20, 20)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [1, 15, 576, 1000])
def test_norm(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(size, generator=generator).to(dtype)
    hidden = (3 * torch.randn(7, size, generator=generator)).to(dtype)
    tolerance = TOLERANCES[dtype]
    out = TritonNorm(weight, 1e-5)(hidden)
    assert_close(out, ReferenceKernels().norm(weight, 1e-5)(hidden), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("heads", [1, 3])
def test_norm_of_each_head_within_wider_rows(heads: int) -> None:
    """In place, and nothing beside it is touched."""
    generator = torch.Generator().manual_seed(heads)
    weight, rows = torch.randn(20, generator=generator), torch.randn(7, 100, generator=generator)
    own, other = rows.clone(), rows.clone()
    TritonNorm(weight, 1e-5).each(own[:, 10 : 10 + 20 * heads])
    ReferenceKernels().norm(weight, 1e-5).each(other[:, 10 : 10 + 20 * heads])
    assert_close(own, other, atol=1e-6, rtol=1e-6)
    outside = [*range(10), *range(10 + 20 * heads, 100)]
    assert own[:, outside].equal(rows[:, outside])
    assert not own[:, 10].equal(rows[:, 10])


def test_norm_of_zeros_and_of_nan() -> None:
    hidden = torch.zeros(3, 40)
    hidden[1, 20] = float("nan")
    out = TritonNorm(torch.ones(40), 1e-5)(hidden)
    assert out[[0, 2]].equal(torch.zeros(2, 40))
    assert out[1].isnan().all()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("size", [1, 48, 1500])
def test_gated(size: int, dtype: torch.dtype, activation: str) -> None:
    both = (4 * torch.randn(5, 2 * size, generator=torch.Generator().manual_seed(size))).to(dtype)
    gate, up = both.double().chunk(2, dim=-1)
    expected = (ACTIVATIONS[activation](gate) * up).to(dtype)
    tolerance = 4 * TOLERANCES[dtype]
    assert_close(gated(both, activation), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("biased", [False, True])
def test_logits_are_not_rounded_to_the_weights_type(biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, hidden = (torch.randn(n, 60, generator=generator).bfloat16() for n in (50, 3))
    bias = torch.randn(50, generator=generator).bfloat16() if biased else None
    logits = TritonKernels(torch.device("cpu")).linear(weight, bias, dtype=torch.float32)(hidden)
    expected = hidden.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert_close(logits, expected.float(), atol=1e-4, rtol=1e-6)


def pages(blocks: int, block_size: int, dim: int, dtype: torch.dtype, kv: str = AUTO) -> LayerCache:
    """Zeros for two key heads."""
    form = kv_format(kv, dtype)
    cache = form.allocate(PageShape(2, dim, dim), blocks, block_size, zeros)
    if form.largest is not None:
        form.set_scales(cache, torch.tensor([[0.25, 0.3], [0.001, 7.0]]))
    return cache


def rotary(dim: int, generator: torch.Generator) -> Rotary:
    angles = torch.rand(64, dim // 2, generator=generator) * 7
    return Rotary(angles.cos(), angles.sin())


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("dim", "block_size"), [(2, 16), (64, 7), (80, 1), (128, 16)])
def test_rotate_and_write(dim: int, block_size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(dim)
    step = make_step(ROWS, block_size, generator)
    blocks = int(step.kv_entries.max()) // block_size + 1
    qkv = torch.randn(len(step.positions), (6 + 2 * 2) * dim, generator=generator).to(dtype)
    table = rotary(dim, generator)
    own, other = (pages(blocks, block_size, dim, dtype) for _ in range(2))
    query = TritonStep(step, 1).rotate_and_write(qkv, table, own)
    tolerance = TOLERANCES[dtype]
    expected = ReferenceStep(step).rotate_and_write(qkv, table, other)
    assert_close(query, expected, atol=tolerance, rtol=tolerance)
    assert_close(own.keys, other.keys, atol=tolerance, rtol=tolerance)
    assert own.values.equal(other.values)


def test_part_of_a_head_is_rotated() -> None:
    generator = torch.Generator().manual_seed(0)
    step = make_step(ROWS, 16, generator)
    qkv = torch.randn(len(step.positions), 6 * 32, generator=generator)
    cache = pages(int(step.kv_entries.max()) // 16 + 1, 16, 32, torch.float32)
    table = rotary(8, generator)
    query = TritonStep(step, 1).rotate_and_write(qkv, table, cache)
    assert query.shape == (len(qkv), 2, 32)
    heads = qkv.view(len(qkv), 6, 32)
    assert query[:, :, 8:].equal(heads[:, :2, 8:])
    cos, sin = table.cos[step.positions, None], table.sin[step.positions, None]
    first, second = heads[:, :2, :4], heads[:, :2, 4:8]
    assert_close(query[:, :, :8], torch.cat((first * cos - second * sin, second * cos + first * sin), -1))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rotate_and_write_in_int8(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    step = make_step(ROWS, 16, generator)
    qkv = torch.randn(len(step.positions), 10 * 40, generator=generator).to(dtype)
    qkv[3, 7 * 40] = float("nan")
    qkv[4] = 0
    table = rotary(40, generator)
    blocks = int(step.kv_entries.max()) // 16 + 1
    own, other = (pages(blocks, 16, 40, dtype, "int8") for _ in range(2))
    TritonStep(step, 1).rotate_and_write(qkv, table, own)
    ReferenceStep(step).rotate_and_write(qkv, table, other)
    assert own.key_scales.isnan().sum() == 1
    for found, right in ((own.key_scales, other.key_scales), (own.value_scales, other.value_scales)):
        assert_close(found, right, atol=0, rtol=1e-6, equal_nan=True)
    for found, right in ((own.keys, other.keys), (own.values, other.values)):
        apart = (found.int() - right.int()).abs()
        assert apart.max() <= 1  # a tie, which the last bit of a float decides
        assert (apart > 0).float().mean() < 0.001


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rotate_and_write_in_fp8(dtype: torch.dtype) -> None:
    """What is too large for its head becomes the largest; a NaN stays one; small numbers go to zero."""
    generator = torch.Generator().manual_seed(3)
    step = make_step(ROWS, 16, generator)
    qkv = torch.randn(len(step.positions), 10 * 40, generator=generator).to(dtype)
    qkv[3, 9 * 40] = float("nan")
    qkv[4] = torch.inf
    qkv[5] *= 1e-4
    table = rotary(40, generator)
    blocks = int(step.kv_entries.max()) // 16 + 1
    own, other = (pages(blocks, 16, 40, dtype, "fp8") for _ in range(2))
    TritonStep(step, 1).rotate_and_write(qkv, table, own)
    ReferenceStep(step).rotate_and_write(qkv, table, other)
    assert own.values.float().isnan().sum() == 1
    assert (own.values.float() == 448).sum() > 2 * 40  # of the row that is infinite, and of a head of 0.001
    assert own.values.view(torch.uint8).equal(other.values.view(torch.uint8))
    apart = own.keys.view(torch.uint8) != other.keys.view(torch.uint8)
    assert apart.float().mean() < 0.001  # a tie, which the last bit of a rotated key decides


def test_a_token_without_an_entry_writes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    step = make_step([(1, 3), (1, 5)], 16, generator)
    step.kv_entries[0] = -1
    cache = pages(16, 16, 16, torch.float32)
    TritonStep(step, 1).rotate_and_write(torch.ones(2, 6 * 16), rotary(16, generator), cache)
    assert cache.values.nonzero()[:, [0, 2]].unique(dim=0).tolist() == [
        [*divmod(int(step.kv_entries[1]), 16)]
    ]


@pytest.mark.parametrize(
    ("kv", "dim", "block_size"),
    [(AUTO, 6, 7), ("int8", 2, 1), ("int8", 64, 16), ("fp8", 6, 7)],
)
def test_blocks_are_copied_in_all_layers(kv: str, dim: int, block_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [pages(9, block_size, dim, torch.bfloat16, kv) for _ in range(3)]
    tensors = [tensor for layer in layers for tensor in layer.tensors()]
    for tensor in tensors:
        tensor.copy_(torch.randint(100, tensor.shape, generator=generator))
    before = [tensor.clone() for tensor in tensors]
    BlockCopies(layers)(torch.tensor([3, 3, 0]), torch.tensor([1, 8, 5]))
    for tensor, old in zip(tensors, before, strict=True):
        old[[1, 8, 5]] = old[[3, 3, 0]]
        assert tensor.equal(old)


def test_weights_of_a_checkpoint_stay_as_they_are() -> None:
    """A product of each type as in plain PyTorch; experts of 4 bits in 4 bits, and others plain."""
    drawn = torch.Generator().manual_seed(0)
    whole, hidden = torch.randint(-7, 8, (32, 64), generator=drawn), torch.randn(3, 64, generator=drawn)
    groups = torch.full((32, 2), 0.25).half()
    rows = torch.full((32,), 0.5)
    four = ScaledWeight.of(whole * 0.25, groups)
    weights = [four, *(ByteWeight.of(whole * 0.5, rows, kind) for kind in (torch.int8, FP8)), whole / 7]
    kernels, reference = KeptTriton(torch.device("cpu")), KeptReference()
    for weight in weights:
        found = kernels.linear(weight)(hidden)
        assert_close(found, reference.linear(weight)(hidden), atol=1e-3, rtol=1e-3)
    down = ScaledWeight.of(torch.ones(64, 32), torch.ones(64, 1).half())
    assert type(kernels.mixture([Expert(four, down)] * 2, 2)) is Int4Mixture
    assert type(kernels.mixture([Expert(weights[1], down)] * 2, 2)) is TritonMixture
    floats = [Expert(scaled_fp4(32, 64), scaled_fp4(64, 16))] * 2
    assert type(kernels.mixture(floats, 2)) is Int4Mixture
    for tokens in (3, 300):  # unpacked in registers, and dequantized
        weight, hidden = scaled_fp4(40, 200), torch.randn(tokens, 200, generator=drawn)
        found, plain = kernels.linear(weight)(hidden), hidden @ weight.clone().T
        assert_close(found, plain, atol=1e-4, rtol=1e-4)
