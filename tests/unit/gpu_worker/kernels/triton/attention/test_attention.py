"""Paged attention in Triton against attention written down plainly in float64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention.attention import TritonStep, tiling
from gpu_worker.kernels.triton.attention.launch import Tiling
from gpu_worker.kernels.triton.kv import FORMATS
from tests.support.paged import Heads, Paged, dense, recorded
from tests.support.triton_paged import make_paged

pytestmark = pytest.mark.usefixtures("poisoned")

PROCESSORS = 8
"""Enough processors that contexts of some hundred positions are split."""

TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Absolute and relative."""

MIXED = [(1, 1), (1, 17), (1, 90), (2, 2), (5, 64), (21, 85), (35, 35)]
DECODES = [(1, 1), (1, 16), (1, 17), (1, 63), (1, 300)]
DRAFTS = [(1, 40), (4, 4), (3, 280), (4, 64)]
WIDE = [(33, 97), (70, 150)]
"""(tokens, context). The contexts of MIXED are not split, the longest of DECODES and DRAFTS are. Chunks of
MIXED are several tiles in float32, of 32 rows and 16 keys; those of WIDE in narrower types, of 128 and 64."""

STEPS = [MIXED, DECODES, DRAFTS]

FEWER_BITS = [name for name in FORMATS if name != AUTO]
"""Formats of pages."""


def check(
    paged: Paged,
    spec: AttentionSpec = FULL_ATTENTION,
    slopes: Tensor | None = None,
    sink_logits: Tensor | None = None,
) -> None:
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain, spec, slopes, sink_logits)
    tolerance = TOLERANCES[paged.query.dtype]
    assert out.dtype == paged.query.dtype
    assert_close(out.double(), dense(paged, spec, slopes, sink_logits), atol=tolerance, rtol=tolerance)


# Of float32 and float16, `test_what_is_seen_of_fewer_bits` has every kind of step over pages of fewer bits.
@pytest.mark.parametrize(
    ("dtype", "kv"),
    [(dtype, kv) for dtype in TOLERANCES for kv in FORMATS if dtype == torch.bfloat16 or kv == AUTO],
    ids=str,
)
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_any_kind_of_step(rows: list[tuple[int, int]], dtype: torch.dtype, kv: str) -> None:
    check(make_paged(rows, Heads(6, 2, 64), 16, dtype, kv))


# Each two go together once: how much room there is says nothing about what a tile does with a window.
@pytest.mark.parametrize(
    ("tokens", "rows", "processors", "spec"),
    [
        pytest.param(66, 7, 1, FULL_ATTENTION, id="full-whole-all"),
        pytest.param(66, 7, 100, AttentionSpec(window=40, sinks=3), id="full-split-window"),
        pytest.param(90, 20, 1, AttentionSpec(window=40, sinks=3), id="room-whole-window"),
        pytest.param(90, 20, 100, FULL_ATTENTION, id="room-split-all"),
        pytest.param(200, 20, 1, AttentionSpec(chunk=5), id="room-whole-chunk"),
    ],
)
def test_recorded_steps(tokens: int, rows: int, processors: int, spec: AttentionSpec) -> None:
    """Launches that are laid out for any step up to some size; what is not needed of it is nothing."""
    paged = make_paged(MIXED, Heads(6, 2, 16), 16, torch.float32)
    query, step = recorded(paged, tokens, rows)
    out = TritonStep(step, processors).attend(query, paged.plain, spec)
    expected = torch.cat((dense(paged, spec), torch.zeros(tokens - len(paged.query), 96)))
    assert_close(out.double(), expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_of_several_tiles(dtype: torch.dtype, kv: str) -> None:
    paged = make_paged(WIDE, Heads(6, 2, 64), 16, dtype, kv)
    check(paged)
    check(paged, AttentionSpec(window=40, sinks=3, softcap=5.0))


@pytest.mark.parametrize("block_size", [1, 7, 8, 32, 256])
def test_any_block_size(block_size: int) -> None:
    check(make_paged(MIXED, Heads(2, 1, 16), block_size, torch.float32))


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
def test_any_head_dim(dim: int) -> None:
    check(make_paged([(1, 70), (9, 40)], Heads(4, 2, dim), 16, torch.float32))
    check(make_paged([(1, 300)], Heads(4, 2, dim), 16, torch.float32))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (9, 3), (14, 2), (49, 1), (71, 1)])
def test_any_group(heads: tuple[int, int]) -> None:
    check(make_paged([(1, 70), (9, 40)], Heads(*heads, 16), 16, torch.float32))
    check(make_paged([(1, 300), (2, 3)], Heads(*heads, 16), 16, torch.float32))


@pytest.mark.parametrize(
    "spec",
    [
        AttentionSpec(window=1),
        AttentionSpec(window=50),
        AttentionSpec(window=64, sinks=4),
        AttentionSpec(window=20, sinks=70),
        AttentionSpec(window=260, sinks=4),
        AttentionSpec(softcap=2.0),
        AttentionSpec(window=40, sinks=3, softcap=5.0),
        AttentionSpec(chunk=37),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [[*MIXED, (40, 250)], DECODES, DRAFTS], ids=["mixed", "decodes", "drafts"])
def test_what_is_seen(rows: list[tuple[int, int]], spec: AttentionSpec) -> None:
    check(make_paged(rows, Heads(2, 1, 16), 16, torch.float32), spec)


@pytest.mark.parametrize("spec", [FULL_ATTENTION, AttentionSpec(window=40, sinks=3, softcap=5.0)], ids=str)
@pytest.mark.parametrize("kv", [AUTO, "int8"])
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_linear_biases(rows: list[tuple[int, int]], kv: str, spec: AttentionSpec) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.01, 0.003])
    check(make_paged(rows, Heads(4, 2, 16), 16, torch.float32, kv), spec, slopes)


@pytest.mark.parametrize(
    ("spec", "kv"), [(FULL_ATTENTION, AUTO), (AttentionSpec(window=40, softcap=5.0), "int8")], ids=str
)
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_learned_sinks(rows: list[tuple[int, int]], kv: str, spec: AttentionSpec) -> None:
    """Small beside the scores of the context, about as large, and far larger."""
    sinks = torch.tensor([-90.0, 0.0, 3.0, 300.0])
    check(make_paged(rows, Heads(4, 2, 16), 16, torch.float32, kv), spec, sink_logits=sinks)


@pytest.mark.parametrize("kv", FEWER_BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_what_is_seen_of_fewer_bits(rows: list[tuple[int, int]], dtype: torch.dtype, kv: str) -> None:
    """Heads of a size that is padded, in blocks of an odd one."""
    paged = make_paged(rows, Heads(6, 2, 24), 7, dtype, kv)
    check(paged, AttentionSpec(window=40, sinks=3, softcap=5.0, scale=0.3))
    check(paged, AttentionSpec(window=260, sinks=4), torch.linspace(0.5, 0.1, 6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_values_of_any_size(rows: list[tuple[int, int]], dtype: torch.dtype) -> None:
    """Most are below what float16 holds; the first ones are the smallest."""
    paged = make_paged(rows, Heads(6, 2, 64), 16, dtype, "int8")
    scales = paged.plain.value_scales
    assert scales is not None
    for row, (_, context) in enumerate(rows):
        at = torch.arange(context)
        sizes = 10.0 ** torch.linspace(-9, 0, context)
        blocks = paged.step.block_tables[row, at // 16].long()
        scales[blocks, :, at % 16] *= sizes[:, None]
        paged.values[row].mul_(sizes[:, None, None])
    check(paged)


@pytest.mark.parametrize("kv", FEWER_BITS)
def test_queries_of_any_size(kv: str) -> None:
    """Those of no size at all see everything alike; those that float16 just holds overflow nowhere."""
    paged = make_paged(MIXED, Heads(6, 2, 64), 16, torch.float16, kv)
    paged.query[3:] *= 1e-6
    paged.query[:3] *= 10_000
    paged.query[1] = 0
    check(paged)


@pytest.mark.parametrize(
    ("capability", "size", "dim", "page_bytes", "keys"),
    [
        ((9, 0), 64, 512, 1, 32),
        ((8, 0), 64, 512, 1, 32),
        ((8, 9), 64, 512, 1, 16),
        ((8, 9), 32, 512, 1, 32),
        ((8, 9), 64, 512, 2, 16),
        ((8, 9), 64, 256, 1, 32),
        ((9, 0), 128, 256, 2, 32),
        ((8, 9), 128, 256, 2, 16),
        ((8, 9), 16, 128, 1, 128),
    ],
)
def test_tiles_fit_into_the_shared_memory(
    capability: tuple[int, int],
    size: int,
    dim: int,
    page_bytes: int,
    keys: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a tile takes was read off compiled kernels: `tests.support.compiled` prints it."""
    monkeypatch.setattr(gpu, "capability", lambda device: capability)
    room = gpu.shared_memory(torch.device("cpu"))
    assert tiling(size, dim, 2, page_bytes, room).keys == keys


@pytest.mark.parametrize(("size", "dim", "stages"), [(32, 512, 1), (16, 512, 2), (64, 256, 1), (32, 256, 2)])
def test_large_tiles_of_float32_have_one_stage_where_there_is_less_memory(
    size: int, dim: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for capability, expected in (((8, 9), stages), ((8, 0), 2)):
        monkeypatch.setattr(gpu, "capability", lambda device, found=capability: found)
        room = gpu.shared_memory(torch.device("cpu"))
        assert tiling(size, dim, 4, 4, room) == Tiling(16, 8, expected)


@pytest.mark.parametrize("rows", [MIXED, DECODES], ids=["mixed", "decodes"])
def test_blocks_out_of_the_window_are_not_looked_up(rows: list[tuple[int, int]]) -> None:
    paged = make_paged(rows, Heads(2, 1, 16), 16, torch.float32)
    tables = paged.step.block_tables.clone()
    for row, (length, context) in enumerate(rows):
        tables[row, : max(0, context - length + 1 - 40) // 16] = 1 << 30
    check(replace(paged, step=replace(paged.step, block_tables=tables)), AttentionSpec(window=40))


def test_large_scores_do_not_overflow() -> None:
    paged = make_paged(MIXED, Heads(4, 2, 16), 16, torch.float32)
    paged.query.mul_(300)
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    assert_close(out.double(), dense(paged), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("dtype", "kv"), [(torch.float32, AUTO), (torch.float16, "int8")], ids=str)
@pytest.mark.parametrize("rows", STEPS, ids=["mixed", "decodes", "drafts"])
def test_nan_stays_in_its_row_and_shows_there(
    rows: list[tuple[int, int]], dtype: torch.dtype, kv: str
) -> None:
    paged = make_paged(rows, Heads(4, 2, 16), 16, dtype, kv)
    whole = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    sick = paged.rows()[2]
    paged.query[sick] = float("nan")
    out = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    assert out[sick].isnan().all()
    out[sick] = whole[sick]
    assert out.equal(whole)


def test_a_row_of_no_context_gives_zeros() -> None:
    """What fills up a batch of a fixed size."""
    paged = make_paged([(1, 5), (1, 300)], Heads(4, 2, 16), 16, torch.float32)
    empty = replace(paged.step, contexts=torch.tensor([0, 300], dtype=torch.int32))
    whole = TritonStep(paged.step, PROCESSORS).attend(paged.query, paged.plain)
    out = TritonStep(empty, PROCESSORS).attend(paged.query, paged.plain)
    assert out[0].equal(torch.zeros(64))
    assert out[1].equal(whole[1])
