"""The kernel of paged attention: one tile of queries over a stretch of one sequence's context.

A tile's rows are the query heads that share a key head, of one token or of several that follow each
other, so that a key is read once for all of them and multiplied as matrices are:

    M rows          token 4: q0 q1 q2 q3 │ token 5: q0 q1 q2 q3 │ ... │ not used
    keys            N positions at a time, wherever the block table says that they lie
    along them      online softmax (Milakov and Gimelshein 2018): the largest score, the sum of weights,
                    the weighted values so far

Positions before a chunk are not read. With a window the stretches that are looked at are the tiles of the
sinks and those of the window, as if they followed each other; what lies between is not read. A context may be
cut into several stretches, a program each; then each leaves what it found as a partial result, and
`combine.py` puts them together.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.attention.programs import leave, own_stretch, own_tile
from gpu_worker.kernels.triton.attention.softmax import in_ceiling, mix, outcome, products, weigh
from gpu_worker.kernels.triton.kv.packed import apart, sizes
from gpu_worker.kernels.triton.kv.rows import find_rows, load_rows


@triton.jit
def capped(scores, cap):
    """cap * tanh(scores / cap)."""
    return cap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / cap)) + 1.0))


@triton.jit
def seen(at, wanted, positions, WINDOW: tl.constexpr, SINKS: tl.constexpr, CHUNK: tl.constexpr):
    """[M, N]: whether a token at `positions` [M] sees the keys at `at` [N]."""
    result = (at[None, :] <= positions[:, None]) & wanted[None, :]
    if WINDOW > 0:
        result = result & ((at[None, :] > positions[:, None] - WINDOW) | (at[None, :] < SINKS))
    if CHUNK > 0:
        result = result & (at[None, :] >= (positions // CHUNK * CHUNK)[:, None])
    return result


@triton.jit(do_not_specialize=["table_width", "rows_in_step", "tile_tokens"])
def attend_tile(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    slopes,
    sink_logits,
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
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    EACH: tl.constexpr,
    WIDEN: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """Grid: tiles of tokens, key heads, splits of the context.

    query, out [tokens, heads, DIM]; keys, values and their scales as `pointers` has them; slopes and
    sink_logits float32 [heads] or None; tables int32 [rows, table_width]; starts int32 [rows + 1]; contexts
    int32 [rows]; tiles as `Launch` has them. With splits partials and logsums take the results, as in
    `combine.py`. M: query rows of a tile, N: keys at a time, EACH: numbers of a word of a page.
    """
    row, first, start, length, before = own_tile(tiles, starts, contexts, tile_tokens)
    kv_head = tl.program_id(1)
    heads: tl.constexpr = KV_HEADS * GROUP
    SIZE: tl.constexpr = DIM // EACH
    PADDED: tl.constexpr = DIM_PADDED // EACH
    members = tl.arange(0, M)
    tokens = first + members // GROUP
    real = (members < tile_tokens * GROUP) & (tokens < length)
    positions = before + tokens
    base = (start + first).to(tl.int64) * heads + kv_head * GROUP
    rows = members // GROUP * heads + members % GROUP
    dims = tl.arange(0, DIM_PADDED)
    own = query + base * DIM + rows[:, None] * DIM + dims[None, :]
    q = tl.load(own, mask=real[:, None] & (dims < DIM)[None, :], other=0.0)
    if HEAD_SCALES:
        scale = scale * tl.load(key_scales + kv_head)
    scale = tl.full([M], scale, tl.float32)
    if EACH == 2:
        size = sizes(q)
        scale = scale * size
        queries = apart(q, size)
    else:
        queries = (q.to(FACTOR),)

    # What any token of the tile sees: the sinks, and from `begin` to `end`.
    end = before + tl.minimum(first + tile_tokens, length)
    if WINDOW > 0:
        begin = tl.maximum(before + first - WINDOW + 1, 0)
        sink_tiles = (tl.minimum(SINKS, begin) + N - 1) // N
        skipped = tl.maximum(begin // N, sink_tiles) - sink_tiles
    elif CHUNK > 0:
        begin = tl.maximum(before + first, 0) // CHUNK * CHUNK  # padding has negative positions
        sink_tiles = 0
        skipped = begin // N
    else:
        begin = 0
        sink_tiles = 0
        skipped = 0
    low, high = own_stretch((end + N - 1) // N - skipped, partials)
    # Tiles that all rows see as a whole need no masks: without a window all but the last ones.
    whole = low
    if WINDOW + CHUNK == 0:
        whole = tl.maximum(low, tl.minimum((before + first + 1) // N, high))

    unit = scale * 1.4426950408889634  # of a score, in units of ln 2
    if SOFTCAP > 0:
        cap = SOFTCAP / scale
    if slopes is not None:
        slope = tl.load(slopes + kv_head * GROUP + members % GROUP) / scale
    row_of_table = tables + row.to(tl.int64) * table_width
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    if sink_logits is not None:  # the first stretch begins with it
        sink = tl.load(sink_logits + kv_head * GROUP + members % GROUP) * 1.4426950408889634
        largest = tl.where(tl.program_id(2) == 0, sink, largest)
        total += tl.where(tl.program_id(2) == 0, 1.0, 0.0)
    sums = (tl.zeros([M, PADDED], tl.float32),) * EACH
    ceiling = tl.full([], 1e-30 if ROW_SCALES else 1.0, tl.float32)
    for masked in tl.static_range(2):
        for number in range(whole if masked else low, high if masked else whole):
            at = number * N + tl.arange(0, N)
            wanted = at < end
            if WINDOW + CHUNK > 0:
                at = tl.where(number < sink_tiles, number, number + skipped) * N + tl.arange(0, N)
                wanted = (at < end) & ((at >= begin) | (at < SINKS))
            places = find_rows(row_of_table, at, wanted, kv_head, KV_HEADS, BLOCK_SIZE)
            k = load_rows(keys + places * SIZE, wanted, SIZE, PADDED, masked)
            scores = products(queries, WIDEN(k, FACTOR))
            if ROW_SCALES:
                scores = scores * tl.load(key_scales + places, mask=wanted, other=0.0)[None, :]
            if SOFTCAP > 0:
                scores = capped(scores, cap[:, None])
            if slopes is not None:
                scores = scores + slope[:, None] * (at[None, :] - positions[:, None]).to(tl.float32)
            if masked:
                scores = tl.where(seen(at, wanted, positions, WINDOW, SINKS, CHUNK), scores, float("-inf"))
            weights, faded, largest, total = weigh(scores, unit, largest, total)
            v = load_rows(values + places * SIZE, wanted, SIZE, PADDED, masked)
            if ROW_SCALES:
                scales = tl.load(value_scales + places, mask=wanted, other=0.0)
                weights, faded, ceiling = in_ceiling(weights, faded, scales, ceiling)
            sums = mix(sums, weights, faded, WIDEN(v, FACTOR))

    if HEAD_SCALES:
        ceiling = tl.load(value_scales + kv_head)
    result, logsum = outcome(sums, largest, total, ceiling)
    leave(result, logsum, out, partials, logsums, base, rows, rows_in_step, dims, real, DIM)
