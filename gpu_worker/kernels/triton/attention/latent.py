"""Latent attention in Triton: see `latent_tile.py` for the kernel; rows are written to their pages here.

A program of the writing takes one head's query of one token, or the token's own row:

    query    │ compressed │ rotated │      the last part is rotated, in place
    latent   │ compressed │ rotated │      so is this, and the whole of it goes into the page
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention.combine import combined
from gpu_worker.kernels.triton.attention.latent_tile import attend_latent
from gpu_worker.kernels.triton.attention.launch import Launch, Tiling
from gpu_worker.kernels.triton.kv.format import format_of, pointers

LARGE = 128 << 10
"""Bytes of shared memory that 32 queries and 64 rows of 512 + 64 two-byte numbers fit into."""


@triton.jit(do_not_specialize_on_alignment=["positions"])
def write_rows(
    query,
    latent,
    positions,
    entries,
    cos,
    sin,
    pages,
    scales,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
    STORE: tl.constexpr,
):
    """Grid: tokens, heads and behind them the token's own row.

    query [tokens, HEADS, DIM] and latent [tokens, DIM], whose last 2 * TURNED numbers are rotated; positions
    int64 [tokens], the line of each in cos and sin, float32 [positions, TURNED]; entries int64 [tokens], -1:
    its row goes nowhere; pages [entries, DIM] and scales as `pointers` has them.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    own = query + (token * HEADS + head) * DIM if head < HEADS else latent + token * DIM
    pairs = tl.arange(0, TURNED_PADDED)
    real = pairs < TURNED
    angles = tl.load(positions + token) * TURNED + pairs
    cosines = tl.load(cos + angles, mask=real, other=1.0)
    sines = tl.load(sin + angles, mask=real, other=0.0)
    firsts = own + DIM - 2 * TURNED + pairs
    first = tl.load(firsts, mask=real, other=0.0).to(tl.float32)
    second = tl.load(firsts + TURNED, mask=real, other=0.0).to(tl.float32)
    first, second = first * cosines - second * sines, second * cosines + first * sines
    tl.store(firsts, first.to(own.dtype.element_ty), mask=real)
    tl.store(firsts + TURNED, second.to(own.dtype.element_ty), mask=real)
    entry = tl.load(entries + token)
    if (head == HEADS) & (entry >= 0):
        tl.debug_barrier()  # what one thread has rotated another stores
        dims = tl.arange(0, DIM_PADDED)
        row = tl.load(own + dims, mask=dims < DIM, other=0.0)
        STORE(row.to(tl.float32), pages, scales, entry, 0, dims, DIM)


def write(query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache, step: StepMetadata) -> None:
    """See `StepAttention.write_latent`. Tokens whose entry is negative write nothing."""
    tokens, heads, dim = query.shape
    turned, kv = rotary.cos.shape[1], format_of(cache)
    pages, _, scales, _ = pointers(cache, kv.stored)
    write_rows[(tokens, heads + 1)](
        query,
        latent,
        step.lines,
        step.kv_entries,
        rotary.cos,
        rotary.sin,
        pages,
        scales,
        HEADS=heads,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        TURNED=turned,
        TURNED_PADDED=triton.next_power_of_2(turned),
        STORE=kv.store_row,
        num_warps=1,
    )


def tile_rows(query: Tensor) -> int:
    """Rows of a tile at most: what its sums, as wide as a compressed row, leave of the registers.

    64 fit into the shared memory of the A100 and the H100. Most other GPUs have less, and on Blackwell the
    sums of 64 rows and their scores are more than tensor memory holds.
    """
    if query.dtype == torch.float32:
        return 16
    large = gpu.shared_memory(query.device) >= LARGE and not gpu.has_tensor_memory(query.device)
    return 64 if large else 32


def tiling(size: int, padded: int, factor: tl.dtype, each: int, shared_memory: int) -> Tiling:
    """For tiles of `size` queries over rows of `padded` numbers, `each` of them in a word.

    Registers are short: many rows of pages at a time save instructions for each, but more queries leave room
    for fewer of them where words are taken apart. `shared_memory`: bytes that a program may have.
    """
    many = size == 32 or (size == 64 and each == 1)
    if each == 1 and shared_memory < LARGE:
        many = False
    rows = 16 if factor == tl.float32 else 64 if many else 32
    return Tiling(rows, 8 if size * padded > 16 * 512 else 4, 2)


def heads_of_a_tile(query: Tensor) -> int:
    """Each token's heads are dealt out evenly."""
    heads = query.shape[1]
    tiles = -(-heads // tile_rows(query))
    return -(-heads // tiles)


def attend(
    launch: Launch,
    query: Tensor,
    cache: LayerCache,
    spec: AttentionSpec,
    step: StepMetadata,
    processors: int,
    factor: tl.dtype,
    out: Tensor,
) -> None:
    """Fill in the rows of `out` [tokens, heads, rank] that are the launch's. `factor`: what is multiplied."""
    _, heads, dim = query.shape
    rank, group = out.shape[2], heads_of_a_tile(query)
    programs = triton.cdiv(heads, group)
    splits, rows = launch.splits(programs, launch.longest, processors), launch.step_tokens * heads
    kv = format_of(cache)
    reading = kv.reading(factor)
    pages, _, scales, _ = pointers(cache, reading.word)
    least = 16 * reading.each
    padded = triton.next_power_of_2(max(least, rank))
    tiles = tiling(launch.size, padded, factor, reading.each, gpu.shared_memory(query.device))
    partials = logsums = None
    if splits > 1:
        partials = query.new_empty((splits, rows, rank), dtype=torch.float32)
        logsums = query.new_empty((splits, rows), dtype=torch.float32)
    attend_latent[(launch.count, programs, splits)](
        query,
        pages,
        scales,
        step.block_tables,
        step.query_starts,
        step.contexts,
        launch.tiles,
        out,
        partials,
        logsums,
        step.block_tables.stride(0),
        rows,
        launch.tile_tokens,
        spec.scale or dim**-0.5,
        HEADS=heads,
        GROUP=group,
        RANK=rank,
        RANK_PADDED=padded,
        ROTATED=dim - rank,
        ROTATED_PADDED=triton.next_power_of_2(max(least, dim - rank)),
        BLOCK_SIZE=cache.block_size,
        M=launch.size,
        N=tiles.keys,
        ROW_SCALES=kv.row_scales,
        HEAD_SCALES=kv.head_scales,
        EACH=reading.each,
        WIDEN=reading.widen,
        FACTOR=factor,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if partials is not None and logsums is not None:
        combined(partials, logsums, out)
