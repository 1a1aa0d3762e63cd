"""The kernel of paged attention: one tile of queries over a stretch of one sequence's context.

A tile's rows are the query heads that share a key head, of one token or of several that follow each
other, so that a key is read once for all of them and multiplied as matrices are:

    M rows          token 4: q0 q1 q2 q3 │ token 5: q0 q1 q2 q3 │ ... │ not used
    keys            N positions at a time, wherever the block table says that they lie
    along them      online softmax (Milakov and Gimelshein 2018): the largest score, the sum of weights,
                    the weighted values so far

With a window the stretches that are looked at are the tiles of the sinks and those of the window, as if they
followed each other; what lies between is not read. A context may be cut into several stretches, a program
each; then each leaves what it found as a partial result, and `combine.py` puts them together.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.fp8 import widen
from gpu_worker.kernels.triton.packed import halves, in_units


@triton.jit
def capped(scores, SOFTCAP: tl.constexpr):
    """SOFTCAP * tanh(scores / SOFTCAP)."""
    return SOFTCAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFTCAP)) + 1.0))


@triton.jit
def absorb(
    largest,
    total,
    mixed,
    mixed_odd,
    ceiling,
    at,
    wanted,
    q,
    q_odd,
    keys,
    values,
    key_scales,
    value_scales,
    slope,
    row_of_table,
    positions,
    kv_head,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    ASSEMBLED: tl.constexpr,
    FACTOR: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The online softmax with the positions `at` taken in. Not MASKED: all rows see all of them."""
    PACKED: tl.constexpr = keys.dtype.element_ty == tl.int16
    SIZE: tl.constexpr = DIM // 2 if PACKED else DIM
    dims = tl.arange(0, DIM_PADDED // 2 if PACKED else DIM_PADDED)
    inside = dims < SIZE
    blocks = tl.load(row_of_table + at // BLOCK_SIZE, mask=wanted, other=0)
    entries = (blocks.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE
    key_places = keys + entries[None, :] * SIZE + dims[:, None]
    value_places = values + entries[:, None] * SIZE + dims[None, :]
    if MASKED or DIM < DIM_PADDED:
        k = tl.load(key_places, mask=wanted[None, :] & inside[:, None], other=0)
    else:
        k = tl.load(key_places)
    if PACKED:
        k, k_odd = halves(k, SCALED, NATIVE_FP8, ASSEMBLED)
        scores = tl.dot(q_odd, k_odd, tl.dot(q, k))
    else:
        scores = tl.dot(q, widen(k, FACTOR, NATIVE_FP8), input_precision="ieee")
    if SCALED:
        scores = scores * tl.load(key_scales + entries, mask=wanted, other=0.0)[None, :]
    # In units of ln 2 scores are `scores * unit`, and that is left for the exponential to do if it can be.
    LATE: tl.constexpr = SOFTCAP == 0 and slope is None
    unit = scale * 1.4426950408889634
    if SOFTCAP > 0:
        scores = capped(scores * scale[:, None], SOFTCAP) * 1.4426950408889634
    elif not LATE:
        scores = scores * unit[:, None]
    if slope is not None:
        scores = scores + slope[:, None] * (at[None, :] - positions[:, None]).to(tl.float32)
    if MASKED:
        seen = (at[None, :] <= positions[:, None]) & wanted[None, :]
        if WINDOW > 0:
            seen = seen & ((at[None, :] > positions[:, None] - WINDOW) | (at[None, :] < SINKS))
        scores = tl.where(seen, scores, float("-inf"))

    highest = tl.max(scores, axis=1)
    risen = tl.maximum(largest, highest * unit if LATE else highest)
    base = tl.where(risen == float("-inf"), 0.0, risen)  # a row that has seen nothing yet
    weights = tl.exp2((scores * unit[:, None] if LATE else scores) - base[:, None])
    faded = tl.exp2(largest - base)
    total = total * faded + tl.sum(weights, axis=1)
    if MASKED or DIM < DIM_PADDED:
        v = tl.load(value_places, mask=wanted[:, None] & inside[None, :], other=0)
    else:
        v = tl.load(value_places)
    if SCALED:  # in units of the largest scale so far: what a weight is multiplied by is at most 1
        worth = tl.load(value_scales + entries, mask=wanted, other=0.0)
        higher = tl.maximum(ceiling, tl.max(worth, axis=0))
        faded = faded * (ceiling / higher)
        weights = weights * (worth * (1.0 / higher))[None, :]
        ceiling = higher
    mixed = mixed * faded[:, None]
    if PACKED:
        v, v_odd = halves(v, SCALED, NATIVE_FP8, ASSEMBLED)
        weights = weights.to(tl.float16)
        mixed = tl.dot(weights, v, mixed)
        mixed_odd = tl.dot(weights, v_odd, mixed_odd * faded[:, None])
    else:
        v = widen(v, FACTOR, NATIVE_FP8)
        mixed = tl.dot(weights.to(FACTOR), v, mixed, input_precision="ieee")
    return risen, total, mixed, mixed_odd, ceiling


@triton.jit(do_not_specialize=["table_width", "rows_in_step", "tile_tokens"])
def attend_tile(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    head_scales,
    slopes,
    tables,
    starts,
    contexts,
    tiles,
    out,
    partials,
    logsums,
    table_width,
    rows_in_step,
    tile_tokens,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SCALED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    ASSEMBLED: tl.constexpr,
    FACTOR: tl.constexpr,
):
    if tiles is None:  # a row is a tile
        row = tl.program_id(0)
        first = 0
    else:
        row = tl.load(tiles + 2 * tl.program_id(0))
        first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1)
    heads: tl.constexpr = KV_HEADS * GROUP

    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    before = tl.load(contexts + row) - length
    members = tl.arange(0, M)
    tokens = first + members // GROUP
    real = (members < tile_tokens * GROUP) & (tokens < length)
    positions = before + tokens
    rows = (start + tokens).to(tl.int64) * heads + kv_head * GROUP + members % GROUP
    PACKED: tl.constexpr = keys.dtype.element_ty == tl.int16
    dims = 2 * tl.arange(0, DIM_PADDED // 2) if PACKED else tl.arange(0, DIM_PADDED)
    held = real[:, None] & (dims < DIM)[None, :]
    own = rows[:, None] * DIM + dims[None, :]
    q = tl.load(query + own, mask=held, other=0.0)
    if head_scales is not None:
        scale = scale * tl.load(head_scales + kv_head)
    scale = tl.full([M], scale, tl.float32)
    if PACKED:
        q, q_odd, size = in_units(q, tl.load(query + own + 1, mask=held, other=0.0))
        scale = scale * size
    else:
        q = q.to(FACTOR)
        q_odd = q

    # What any token of the tile sees: the sinks, and from `begin` to `end`.
    end = before + tl.minimum(first + tile_tokens, length)
    if WINDOW > 0:
        begin = tl.maximum(before + first - WINDOW + 1, 0)
        sink_tiles = (tl.minimum(SINKS, begin) + N - 1) // N
        skipped = tl.maximum(begin // N, sink_tiles) - sink_tiles
    else:
        begin = 0
        sink_tiles = 0
        skipped = 0
    count = (end + N - 1) // N - skipped
    low, high = 0, count
    if partials is not None:
        share = tl.cdiv(count, tl.num_programs(2))
        low = tl.program_id(2) * share
        high = tl.minimum(low + share, count)

    slope = None
    if slopes is not None:
        slope = tl.load(slopes + kv_head * GROUP + members % GROUP) * 1.4426950408889634
    row_of_table = tables + row.to(tl.int64) * table_width
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, DIM_PADDED // 2 if PACKED else DIM_PADDED], tl.float32)
    mixed_odd = mixed
    ceiling = tl.full([], 1e-30 if SCALED else 1.0, tl.float32)
    # Tiles that all rows see as a whole need no masks: without a window all but the last ones.
    whole = low
    if WINDOW == 0:
        whole = tl.maximum(low, tl.minimum((before + first + 1) // N, high))
    for masked in tl.static_range(2):
        for number in range(whole if masked else low, high if masked else whole):
            at = number * N + tl.arange(0, N)
            wanted = at < end
            if WINDOW > 0:
                at = tl.where(number < sink_tiles, number, number + skipped) * N + tl.arange(0, N)
                wanted = (at < end) & ((at >= begin) | (at < SINKS))
            largest, total, mixed, mixed_odd, ceiling = absorb(
                largest,
                total,
                mixed,
                mixed_odd,
                ceiling,
                at,
                wanted,
                q,
                q_odd,
                keys,
                values,
                key_scales,
                value_scales,
                slope,
                row_of_table,
                positions,
                kv_head,
                scale,
                KV_HEADS,
                DIM,
                DIM_PADDED,
                BLOCK_SIZE,
                WINDOW,
                SINKS,
                SOFTCAP,
                SCALED,
                NATIVE_FP8,
                ASSEMBLED,
                FACTOR,
                masked,
            )

    divisor = tl.where(total == 0.0, 1.0, total)  # nothing was seen
    if head_scales is not None:
        ceiling = tl.load(head_scales + KV_HEADS + kv_head)
    by = (ceiling / divisor)[:, None]
    if partials is None:
        to = out + own
    else:
        at_split = tl.program_id(2).to(tl.int64) * rows_in_step + rows
        to = partials + at_split[:, None] * DIM + dims[None, :]
        tl.store(logsums + at_split, largest + tl.log2(divisor), mask=real)
    tl.store(to, (mixed * by).to(to.dtype.element_ty), mask=held)
    if PACKED:
        tl.store(to + 1, (mixed_odd * by).to(to.dtype.element_ty), mask=held)
