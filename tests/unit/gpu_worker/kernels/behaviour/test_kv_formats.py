"""Every format of pages on every back end writes, reads and copies what the reference does."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu import kv as cpu
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference import kv as reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton import kv as triton
from gpu_worker.kernels.triton.kernels import TritonKernels
from tests.support.native import with_team
from tests.support.paged import make_step, nowhere

pytestmark = pytest.mark.usefixtures("poisoned")

HEADS, BLOCK_SIZE = 4, 8
PROMPTS = [(9, 9), (20, 20), (41, 41)]
"""(tokens, context); a token more fits into their blocks."""
SHAPES = {"apart": PageShape(2, 32, 32), "shared": PageShape(1, 64, 40, shared=True)}

FORMATS = [
    # With a GPU Triton compiles for it, and these tensors are the CPU's.
    *(("triton", name) for name in triton.FORMATS if not torch.cuda.is_available()),
    *(("cpp", name) for name in cpu.FORMATS),
]
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 1e-2}
"""Relative (2-norms): a tie may be rounded to another number, and sums are added up in another order."""
ROUNDED = 0.06
"""What numbers of one byte may be off by at most, relative (2-norms)."""


def kernels_of(back_end: str) -> Kernels:
    if back_end == "triton":
        return TritonKernels(torch.device("cpu"))
    return CpuKernels(with_team(build.supported()[0], 1))


def computed(
    kernels: Kernels, step: StepMetadata, cache: LayerCache, dtype: torch.dtype, seed: int
) -> Tensor:
    """What attention gives for drawn queries, once drawn keys and values are in the pages."""
    shape, generator = cache.shape, torch.Generator().manual_seed(seed)
    turned = shape.key_size - shape.value_size if shape.shared else shape.key_size
    angles = torch.rand(64, turned // 2, generator=generator) * 7
    rotary = Rotary(angles.cos(), angles.sin())
    heads = HEADS + (1 if shape.shared else 2 * shape.heads)
    drawn = torch.randn(len(step.positions), heads, shape.key_size, generator=generator).to(dtype)
    attention = kernels.begin(step)
    if shape.shared:
        query = drawn[:, :HEADS].contiguous()
        attention.write_latent(query, drawn[:, HEADS].contiguous(), rotary, cache)
    else:
        query = attention.rotate_and_write(drawn.flatten(1), rotary, cache)
    return attention.attend(query, cache).float()


def outcome(kernels: Kernels, name: str, shape: PageShape, dtype: torch.dtype) -> Tensor:
    """What two steps give: prompts; and a token of each, once their blocks lie elsewhere."""
    step = make_step(PROMPTS, BLOCK_SIZE, torch.Generator().manual_seed(0))
    tables = step.block_tables
    sources = tables[tables < 1 << 30].long()
    blocks = 2 * len(sources) + 1
    cache = nowhere(kernels.kv_format(name, dtype), shape, blocks, BLOCK_SIZE)
    prompts = computed(kernels, step, cache, dtype, seed=1)
    others = torch.ones(blocks, dtype=torch.bool)
    others[sources] = False
    targets = others.nonzero()[: len(sources), 0]
    kernels.copies([cache])(sources, targets)
    for tensor in cache.tensors():
        tensor[sources] = torch.nan if tensor.dtype.is_floating_point else 0x7F
    tables[tables < 1 << 30] = targets.int()
    positions = step.contexts.long()
    found = tables.gather(1, positions[:, None] // BLOCK_SIZE)[:, 0].long()
    step = replace(
        step,
        decodes=len(PROMPTS),
        query_lengths=(1,) * len(PROMPTS),
        context_lengths=tuple(context + 1 for _, context in PROMPTS),
        query_starts=torch.arange(len(PROMPTS) + 1, dtype=torch.int32),
        contexts=step.contexts + 1,
        positions=positions,
        kv_entries=found * BLOCK_SIZE + positions % BLOCK_SIZE,
    )
    return torch.cat((prompts, computed(kernels, step, cache, dtype, seed=2)))


@cache
def expected(name: str, shape: str, dtype: torch.dtype) -> Tensor:
    """What the reference gives."""
    return outcome(ReferenceKernels(), name, SHAPES[shape], dtype)


def apart(found: Tensor, other: Tensor) -> float:
    """Relative, by 2-norms; not a number if anything was read that nobody wrote."""
    return float((found - other).norm() / other.norm())


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("back_end", "name"), FORMATS)
def test_it_is_what_the_reference_has(back_end: str, name: str, shape: str, dtype: torch.dtype) -> None:
    found = outcome(kernels_of(back_end), name, SHAPES[shape], dtype)
    assert apart(found, expected(name, shape, dtype)) < TOLERANCES[dtype]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in reference.FORMATS if name != AUTO])
def test_the_reference_is_near_what_it_was_given(name: str, shape: str) -> None:
    found, plain = (expected(each, shape, torch.float32) for each in (name, AUTO))
    assert 0 < apart(found, plain) < ROUNDED
