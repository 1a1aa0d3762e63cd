"""Latent attention in Triton: pages against plain PyTorch, sums against attention written down in float64."""

from dataclasses import replace

import pytest
import torch
import triton.language as tl
from torch.testing import assert_close

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, Rotary
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference.latent import write_latent
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention import latent
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.kv import FORMATS
from tests.support.paged import Heads, dense, make_step, recorded, zeros
from tests.support.triton_paged import kv_format, make_paged
from tests.unit.gpu_worker.kernels.triton.attention.test_attention import (
    DECODES,
    DRAFTS,
    FEWER_BITS,
    MIXED,
    PROCESSORS,
    TOLERANCES,
    WIDE,
)

pytestmark = pytest.mark.usefixtures("poisoned")

SMALL = Heads(6, 1, 28, rank=20)
STEPS = [MIXED, DECODES, DRAFTS]


def check(rows: list[tuple[int, int]], heads: Heads, dtype: torch.dtype, kv: str = AUTO) -> None:
    paged = make_paged(rows, heads, 16, dtype, kv)
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    assert out.dtype == dtype
    assert_close(out.double(), dense(paged), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_any_kind_of_step(rows: list[tuple[int, int]], dtype: torch.dtype, kv: str) -> None:
    check(rows, SMALL, dtype, kv)


@pytest.mark.parametrize("kv", FORMATS)
def test_chunks_of_several_tiles(kv: str) -> None:
    check(WIDE, SMALL, torch.bfloat16, kv)


@pytest.mark.parametrize("kv", FEWER_BITS)
def test_queries_of_any_size(kv: str) -> None:
    """Those of no size at all see everything alike; those that float16 just holds overflow nowhere."""
    paged = make_paged(MIXED, SMALL, 16, torch.float16, kv)
    paged.query[3:] *= 1e-6
    paged.query[:3] *= 10_000
    paged.query[:3, :, 20:] *= 0.01
    paged.query[1] = 0
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    assert_close(out.double(), dense(paged), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_rows_of_any_size(rows: list[tuple[int, int]]) -> None:
    """Weights times their scales would be below what float16 holds; the first rows are the smallest."""
    paged = make_paged(rows, SMALL, 16, torch.float16, "int8")
    scales = paged.plain.key_scales
    assert scales is not None
    for row, (_, context) in enumerate(rows):
        at = torch.arange(context)
        sizes = 10.0 ** torch.linspace(-9, -4, context)
        scales[paged.step.block_tables[row, at // 16].long(), :, at % 16] *= sizes[:, None]
        paged.keys[row].mul_(sizes[:, None, None])
        paged.values[row].mul_(sizes[:, None, None])
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    assert_close(out.double() * 1e4, dense(paged) * 1e4, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("capability", [(9, 0), (8, 9)], ids=["Hopper", "Ada"])
@pytest.mark.parametrize("heads", [1, 16, 40, 128])
def test_any_number_of_heads(
    heads: int, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than a tile holds too, and not as many in each."""
    monkeypatch.setattr(gpu, "capability", lambda device: capability)
    check([(1, 70), (9, 40)], Heads(heads, 1, 24, rank=16), torch.float32)
    check([(1, 300)], Heads(heads, 1, 24, rank=16), torch.bfloat16)


@pytest.mark.parametrize(
    ("capability", "rows", "keys"),
    [((8, 0), 64, (32, 64, 64)), ((9, 0), 64, (32, 64, 64)), ((8, 9), 32, (32, 32)), ((10, 0), 32, (32, 64))],
)
def test_tiles_are_as_large_as_the_gpu_has_room_for(
    capability: tuple[int, int], rows: int, keys: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "capability", lambda device: capability)
    query = torch.zeros(1, 128, 576, dtype=torch.bfloat16)
    assert latent.tile_rows(query) == rows
    assert latent.tile_rows(query.float()) == 16
    room, sizes = gpu.shared_memory(query.device), [16, 32, 64][: len(keys)]
    assert tuple(latent.tiling(size, 512, tl.bfloat16, 1, room).keys for size in sizes) == keys


def test_sizes_of_large_models() -> None:
    check([(1, 270), (2, 40)], Heads(16, 1, 576, rank=512), torch.bfloat16)


def test_with_a_window_it_is_the_reference() -> None:
    paged = make_paged(MIXED, SMALL, 16, torch.float32)
    spec = AttentionSpec(window=20)
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain, spec)
    assert_close(out.double(), dense(paged, spec), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("processors", [1, 100], ids=["whole", "split"])
def test_recorded_steps(processors: int) -> None:
    paged = make_paged(MIXED, Heads(6, 1, 48, 32), 16, torch.float32)
    query, step = recorded(paged, 90, 20)
    out = TritonStep(step, processors).attend(query, paged.plain)
    expected = torch.cat((dense(paged), torch.zeros(len(query) - len(paged.query), 192)))
    assert_close(out.double(), expected, atol=3e-6, rtol=3e-6)


def test_a_row_of_no_context_gives_zeros() -> None:
    paged = make_paged([(1, 5), (1, 300)], SMALL, 16, torch.float32)
    empty = replace(paged.step, contexts=torch.tensor([0, 300], dtype=torch.int32))
    out = TritonStep(empty, PROCESSORS).attend(paged.query, paged.plain)
    assert out[0].equal(torch.zeros(6 * 20))
    assert out[1].isfinite().all()


@pytest.mark.parametrize("kv", FORMATS)
def test_rows_are_rotated_and_written(kv: str) -> None:
    generator = torch.Generator().manual_seed(1)
    step = make_step([(1, 1), (1, 33), (5, 64)], 16, generator)
    query = torch.randn(len(step.positions), 3, 28, generator=generator)
    latent = torch.randn(len(step.positions), 28, generator=generator)
    angles = torch.rand(64, 4, generator=generator) * 7
    rotary = Rotary(angles.cos(), angles.sin())
    blocks = int(step.kv_entries.max()) // 16 + 2
    own, other = pages(blocks, kv), pages(blocks, kv)
    expected = query.clone(), latent.clone()
    step.kv_entries[1] = 16 * (blocks - 1)
    write_latent(*expected, rotary, other, step)
    for tensor in other.tensors():
        tensor[-1] = 0
    step.kv_entries[1] = -1  # of what fills up a batch: nothing is written
    TritonStep(step, 1).write_latent(query, latent, rotary, own)
    assert_close((query, latent), expected, atol=1e-6, rtol=1e-6)
    for found, right in zip(own.tensors(), other.tensors(), strict=True):
        atol = 1 if found.dtype in (torch.int8, torch.uint8) else 1e-6  # a tie
        assert_close(found.float(), right.float(), atol=atol, rtol=1e-6)


def pages(blocks: int, kv: str) -> LayerCache:
    """Zeros."""
    form = kv_format(kv, torch.float32)
    cache = form.allocate(PageShape(1, 28, 20, shared=True), blocks, 16, zeros)
    if form.largest is not None:
        form.set_scales(cache, torch.full((2, 1), 0.01))
    return cache
