"""Paged attention in C++ against attention written down plainly in float64."""

import ctypes
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu import kv as cpu
from gpu_worker.kernels.cpu.attention import Attention
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.kv import FORMATS
from tests.support.native import TESTED, WITH_UNITS, library_of, with_team
from tests.support.paged import Heads, Paged, dense, make_paged

pytestmark = pytest.mark.usefixtures("poisoned")

TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
"""Absolute and relative."""
WHOLE = 5e-4
"""The least of them for pages of int8 in C++, where queries and weights are whole numbers of 14 bits."""

NUMBERS = [(dtype, kv) for kv in cpu.FORMATS for dtype in TOLERANCES]
"""Types of the queries, and formats of the pages."""

REFERENCE = [(dtype, kv) for kv in FORMATS for dtype in TOLERANCES]
"""As `NUMBERS`, in plain PyTorch."""

Row = tuple[int, int]
ROWS: tuple[Row, ...] = (
    *((1, 1), (1, 16), (1, 17), (1, 63), (1, 300)),
    *((2, 2), (5, 64), (33, 97), (70, 70), (3, 260)),
)
"""(tokens, context): decodes first, then drafts and chunks; on edges of blocks, tiles and segments."""


everywhere = pytest.mark.parametrize("native", WITH_UNITS, indirect=True)
"""Each case with all instruction sets, one after the other, so that it is made once."""


@lru_cache(maxsize=1)
def paged_of(
    rows: tuple[Row, ...], heads: Heads, block_size: int, dtype: torch.dtype, kv: str = AUTO
) -> Paged:
    """For tests that write into none of it: a case is made once, and each instruction set computes it."""
    return make_paged(list(rows), heads, block_size, dtype, kv)


expected = lru_cache(maxsize=4)(dense)


@lru_cache(maxsize=1)
def by_the_reference(
    paged: Paged, spec: AttentionSpec = FULL_ATTENTION, slopes: Tensor | None = None
) -> Tensor:
    return ReferenceStep(paged.step).attend(paged.query, paged.plain, spec, slopes)


def attend(
    library: ctypes.CDLL, paged: Paged, spec: AttentionSpec = FULL_ATTENTION, slopes: Tensor | None = None
) -> Tensor:
    return Attention(library).begin(paged.step).attend(paged.query, paged.cache, spec, slopes)


def check(
    library: ctypes.CDLL, paged: Paged, spec: AttentionSpec = FULL_ATTENTION, slopes: Tensor | None = None
) -> None:
    compare(attend(library, paged, spec, slopes), paged, spec, slopes, WHOLE if in_whole(paged) else 0)


def in_whole(paged: Paged) -> bool:
    """Whether C++ multiplies whole numbers there."""
    return paged.cache.keys.dtype == torch.int8 and not paged.cache.shape.shared


def compare(
    out: Tensor,
    paged: Paged,
    spec: AttentionSpec = FULL_ATTENTION,
    slopes: Tensor | None = None,
    least: float = 0,
) -> None:
    """Of a case of `paged_of`. `least`: tolerance."""
    tolerance = max(least, TOLERANCES[paged.query.dtype])
    assert out.dtype == paged.query.dtype
    assert_close(out.double(), expected(paged, spec, slopes), atol=tolerance, rtol=tolerance)


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("block_size", [1, 7, 8, 16, 32])
def test_any_block_size(native: ctypes.CDLL, block_size: int, dtype: torch.dtype, kv: str) -> None:
    check(native, paged_of(ROWS, Heads(6, 2, 64), block_size, dtype, kv))


@pytest.mark.parametrize(("dtype", "kv"), REFERENCE)
@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_the_reference(block_size: int, dtype: torch.dtype, kv: str) -> None:
    paged = paged_of(ROWS, Heads(6, 2, 64), block_size, dtype, kv)
    compare(by_the_reference(paged), paged)


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("dim", [2, 6, 16, 32, 48, 64, 80, 96, 128, 256])
def test_any_head_dim(native: ctypes.CDLL, dim: int, dtype: torch.dtype, kv: str) -> None:
    check(native, paged_of(ROWS, Heads(4, 2, dim), 16, dtype, kv))


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (9, 3), (14, 2), (32, 4), (49, 1)])
def test_any_group(native: ctypes.CDLL, heads: tuple[int, int], dtype: torch.dtype, kv: str) -> None:
    check(native, paged_of(ROWS, Heads(*heads, 32), 16, dtype, kv))


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("rows", [((1, 3001),), ((1, 3001), (1, 2), (9, 2048)), ((130, 1027),)])
def test_long_contexts(native: ctypes.CDLL, rows: tuple[Row, ...], dtype: torch.dtype, kv: str) -> None:
    check(native, paged_of(rows, Heads(9, 3, 64), 16, dtype, kv))


LATENT = [Heads(16, 1, 64, 40), Heads(5, 1, 32, 10), Heads(7, 1, 42, 20), Heads(3, 1, 576, 512)]


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize(("heads", "block_size"), list(zip(LATENT, [1, 7, 16, 16], strict=True)), ids=str)
def test_values_that_are_the_first_numbers_of_keys(
    native: ctypes.CDLL, heads: Heads, block_size: int, dtype: torch.dtype, kv: str
) -> None:
    paged = paged_of(((1, 1100), *ROWS, (40, 700)), heads, block_size, dtype, kv)
    for spec in (FULL_ATTENTION, AttentionSpec(window=50), AttentionSpec(window=20, sinks=70, softcap=3.0)):
        check(native, paged, spec)


@pytest.mark.parametrize(("dtype", "kv"), REFERENCE)
@pytest.mark.parametrize("heads", LATENT, ids=str)
@pytest.mark.parametrize("block_size", [7, 16])
def test_the_reference_where_values_are_the_first_numbers_of_keys(
    block_size: int, heads: Heads, dtype: torch.dtype, kv: str
) -> None:
    paged = paged_of(ROWS, heads, block_size, dtype, kv)
    compare(by_the_reference(paged), paged)


WINDOWS = [
    AttentionSpec(window=1),
    AttentionSpec(window=50),
    AttentionSpec(window=64, sinks=4),
    AttentionSpec(window=5, sinks=1),
    AttentionSpec(window=20, sinks=70),
    AttentionSpec(window=5000, sinks=4),
    AttentionSpec(softcap=2.0),
    AttentionSpec(window=40, sinks=3, softcap=5.0),
]


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("spec", WINDOWS, ids=str)
def test_what_is_seen(native: ctypes.CDLL, spec: AttentionSpec, dtype: torch.dtype, kv: str) -> None:
    paged = paged_of((*ROWS, (40, 700)), Heads(6, 2, 64), 16, dtype, kv)
    check(native, paged, spec)
    compare(by_the_reference(paged, spec), paged, spec)


SLOPES = torch.tensor([0.5, 0.25, 0.01, 0.125, 0.9, 0.003])
"""Of six heads."""
SINKS = torch.tensor([-90.0, 0.0, 1.5, 3.0, 6.0, 300.0])


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("spec", [FULL_ATTENTION, WINDOWS[4], WINDOWS[7]], ids=str)
@pytest.mark.parametrize(("kv_heads", "block_size"), [(6, 7), (2, 16)])
def test_linear_biases(
    native: ctypes.CDLL, kv_heads: int, block_size: int, spec: AttentionSpec, dtype: torch.dtype, kv: str
) -> None:
    paged = paged_of((*ROWS, (40, 700)), Heads(6, kv_heads, 48), block_size, dtype, kv)
    check(native, paged, spec, SLOPES)
    compare(by_the_reference(paged, spec, SLOPES), paged, spec, SLOPES)


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("spec", [FULL_ATTENTION, WINDOWS[4], AttentionSpec(softcap=3.0)], ids=str)
def test_learned_sinks(native: ctypes.CDLL, spec: AttentionSpec, dtype: torch.dtype, kv: str) -> None:
    """Small beside the scores of the context, about as large, and far larger."""
    paged = paged_of((*ROWS, (40, 700)), Heads(6, 2, 48), 16, dtype, kv)
    for out, least in (
        (
            Attention(native).begin(paged.step).attend(paged.query, paged.cache, spec, None, SINKS),
            WHOLE if in_whole(paged) else 0,
        ),
        (ReferenceStep(paged.step).attend(paged.query, paged.plain, spec, None, SINKS), 0),
    ):
        tolerance = max(least, TOLERANCES[dtype])
        assert_close(out.double(), expected(paged, spec, None, SINKS), atol=tolerance, rtol=tolerance)


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("chunk", [1, 37, 256, 300])
def test_chunks(native: ctypes.CDLL, chunk: int, dtype: torch.dtype, kv: str) -> None:
    paged = paged_of((*ROWS, (40, 700)), Heads(6, 2, 48), 16, dtype, kv)
    check(native, paged, AttentionSpec(chunk=chunk))
    compare(by_the_reference(paged, AttentionSpec(chunk=chunk)), paged, AttentionSpec(chunk=chunk))


@lru_cache(maxsize=1)
def out_of_the_window(block_size: int, dtype: torch.dtype, kv: str, window: int) -> Paged:
    """Tables lead nowhere where nothing is seen."""
    paged = make_paged([*ROWS, (40, 700), (3, 3000)], Heads(6, 2, 64), block_size, dtype, kv)
    for table, context, tokens in zip(
        paged.step.block_tables, paged.step.context_lengths, paged.step.query_lengths, strict=True
    ):
        gone = max(0, context - tokens + 1 - window) // block_size
        table[:gone] = 1 << 30
    return paged


@everywhere
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("block_size", [1, 7, 16, 32])
def test_blocks_out_of_the_window_are_not_looked_up(
    native: ctypes.CDLL, block_size: int, dtype: torch.dtype, kv: str
) -> None:
    spec = AttentionSpec(window=50)
    paged = out_of_the_window(block_size, dtype, kv, spec.window)
    check(native, paged, spec)
    compare(by_the_reference(paged, spec), paged, spec)


FAR = 1 << 20
"""Positions: a multiple of what blocks, tiles and segments have."""


def moved(paged: Paged) -> Paged:
    """The same rows `FAR` positions later. The blocks of the first tile stay; those between lead nowhere."""
    step = paged.step
    before = torch.full((len(step.contexts), FAR // 16), 1 << 30, dtype=torch.int32)
    before[:, : 64 // 16] = step.block_tables[:, : 64 // 16]
    later = replace(
        step,
        context_lengths=tuple(context + FAR for context in step.context_lengths),
        contexts=step.contexts + FAR,
        block_tables=torch.cat((before, step.block_tables), 1),
        positions=step.positions + FAR,
    )
    return replace(paged, step=later)


@pytest.mark.parametrize("instruction_set", TESTED)
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize(
    "spec", [AttentionSpec(window=300), AttentionSpec(window=60, sinks=4), AttentionSpec(chunk=512)], ids=str
)
def test_what_is_out_of_the_window_takes_no_time(
    instruction_set: str, spec: AttentionSpec, tokens: int, dtype: torch.dtype, kv: str
) -> None:
    library = with_team(instruction_set, 1)  # of which this thread is all

    def timed(paged: Paged) -> tuple[Tensor, float]:
        step, seconds = Attention(library).begin(paged.step), []
        for _ in range(5):
            began = time.thread_time()
            out = step.attend(paged.query, paged.cache, spec)
            seconds.append(time.thread_time() - began)
        return out, min(seconds)

    near = paged_of(((tokens, 1000),), Heads(6, 2, 64), 16, dtype, kv)
    (here, short), (there, long) = timed(near), timed(moved(near))
    assert there.equal(here)
    assert long < 3 * short


def test_large_scores_do_not_overflow(native: ctypes.CDLL) -> None:
    paged = make_paged([*ROWS], Heads(4, 2, 64), 16, torch.float32)
    paged.query.mul_(300)
    assert_close(attend(native, paged).double(), dense(paged), atol=2e-3, rtol=2e-3)


def test_nan_stays_in_its_row(native: ctypes.CDLL) -> None:
    paged = make_paged([*ROWS], Heads(4, 2, 64), 16, torch.float32)
    whole = attend(native, paged)
    sick = paged.rows()[7]
    paged.query[sick] = float("nan")
    out = attend(native, paged)
    assert out[sick].isnan().all()
    out[sick] = whole[sick]
    assert out.equal(whole)


@everywhere
def test_nan_in_the_pages_stays_in_its_sequence(native: ctypes.CDLL) -> None:
    """And there it shows, from the token on that it belongs to."""
    for dtype, kv in NUMBERS:
        paged = make_paged([*ROWS], Heads(4, 2, 64), 16, dtype, kv)
        whole = attend(native, paged)
        sick = paged.rows()[7]
        entry = int(paged.step.kv_entries[sick.start + 20])
        pack = 4 // dtype.itemsize
        if paged.cache.value_scales is None:
            pairs = paged.cache.values.view(-1, 2, 16 // pack, 64, pack)
            pairs[entry // 16, :, entry % 16 // pack, :, entry % pack] = float("nan")
        else:
            paged.cache.value_scales[entry // 16, :, entry % 16] = float("nan")
        out = attend(native, paged)
        assert out[sick.start + 20 : sick.stop].isnan().all()
        out[sick] = whole[sick]
        assert out.equal(whole)


def alone(paged: Paged, row: int, tokens: Sequence[int]) -> Paged:
    """The same keys and values seen by some tokens of one row, each a row of its own, as decodes are."""
    step = paged.step
    first = paged.rows()[row].start
    contexts = [int(step.positions[first + token]) + 1 for token in tokens]
    places = torch.tensor([first + token for token in tokens])
    cut = type(step)(
        decodes=len(tokens),
        query_lengths=(1,) * len(tokens),
        context_lengths=tuple(contexts),
        query_starts=torch.arange(len(tokens) + 1, dtype=torch.int32),
        contexts=torch.tensor(contexts, dtype=torch.int32),
        block_tables=step.block_tables[row].repeat(len(tokens), 1),
        positions=step.positions[places],
        kv_entries=step.kv_entries[places],
    )
    return Paged(cut, paged.plain, paged.cache, paged.query[places], [], [])


SPECS = [
    (FULL_ATTENTION, None),
    (AttentionSpec(window=100), None),
    (AttentionSpec(window=100, sinks=4, softcap=3.0), None),
    (AttentionSpec(window=300), SLOPES),
]


@everywhere
@pytest.mark.parametrize(("spec", "slopes"), SPECS, ids=str)
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
@pytest.mark.parametrize("heads", [Heads(6, 2, 64), Heads(6, 2, 80), Heads(6, 1, 96, 52)], ids=str)
def test_a_token_is_the_same_alone_in_a_chunk_and_in_a_batch(
    native: ctypes.CDLL, heads: Heads, dtype: torch.dtype, kv: str, spec: AttentionSpec, slopes: Tensor | None
) -> None:
    """Bit for bit: a sequence that is computed again goes on with the same tokens."""
    rows = ((1, 40), (1, 900), (40, 900), (70, 70))
    paged = paged_of(rows, heads, 16, dtype, kv)
    out = attend(native, paged, spec, slopes)
    for row, tokens in enumerate(paged.rows()):
        some = sorted({0, 1, (tokens.stop - tokens.start) // 2, tokens.stop - tokens.start - 1})
        some = [token for token in some if tokens.start + token < tokens.stop]
        for token in some:
            single = attend(native, alone(paged, row, [token]), spec, slopes)
            assert single.equal(out[tokens.start + token : tokens.start + token + 1])
        together = attend(native, alone(paged, row, some * 7), spec, slopes)
        assert together.equal(out[[tokens.start + token for token in some * 7]])


@pytest.mark.parametrize("instruction_set", WITH_UNITS)
@pytest.mark.parametrize(("dtype", "kv"), NUMBERS)
def test_any_number_of_threads_gives_the_same(
    tmp_path: Path, instruction_set: str, dtype: torch.dtype, kv: str
) -> None:
    outs = []
    paged = paged_of(((1, 2000), (1, 3), (50, 600)), Heads(6, 2, 64), 16, dtype, kv)
    for threads in (1, 2, 3):
        # A library has one team: another copy of it has another.
        copy = shutil.copy(library_of(instruction_set), tmp_path / f"{threads}.so")
        library = ctypes.CDLL(str(copy))
        assert library.quire_start(threads, None) == threads
        outs.append(attend(library, paged))
    assert outs[0].equal(outs[1])
    assert outs[0].equal(outs[2])


def test_a_team_that_grew(tmp_path: Path) -> None:
    paged = make_paged([(1, 2000), (1, 3), (50, 600)], Heads(6, 2, 64), 16, torch.float32)
    library = ctypes.CDLL(str(shutil.copy(build.library(build.supported()[0]), tmp_path / "grows.so")))
    outs = []
    for threads in (1, 2):
        assert library.quire_start(threads, None) == threads
        outs.append(attend(library, paged))
    assert outs[0].equal(outs[1])
