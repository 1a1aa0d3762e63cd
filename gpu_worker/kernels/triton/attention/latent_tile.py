"""The kernel of latent attention: `tile.py` for pages whose one row is key and value at once.

    row of a page    │ compressed: RANK numbers │ rotated: ROTATED │   both: the key, the first: the value
    query            │ RANK                     │ ROTATED          │
    M rows           token 4: h0 h1 h2 h3 │ token 5: h0 h1 h2 h3 │ ...      some of the heads of some tokens
    rows of pages    N at a time, read once: multiplied by the queries, then by the weights

All heads look at the same rows. There may be more of them than a tile holds; then several programs read what
the first of them has brought into the cache.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.attention.programs import leave, own_stretch, own_tile
from gpu_worker.kernels.triton.attention.softmax import in_ceiling, mix, outcome, products, weigh
from gpu_worker.kernels.triton.kv.packed import apart, sizes
from gpu_worker.kernels.triton.kv.rows import find_rows, load_rows


@triton.jit(do_not_specialize=["table_width", "rows_in_step", "tile_tokens"])
def attend_latent(
    query,
    pages,
    scales,
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
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    ROTATED: tl.constexpr,
    ROTATED_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    HEAD_SCALES: tl.constexpr,
    EACH: tl.constexpr,
    WIDEN: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """Grid: tiles of tokens, groups of heads, splits of the context.

    query [tokens, HEADS, RANK + ROTATED]; pages [entries, (RANK + ROTATED) / EACH]; scales float32 [entries]
    or [1], or None; out [tokens, HEADS, RANK]; the rest as in `attend_tile`. GROUP: heads of a program, M:
    query rows of a tile, N: rows of pages at a time, EACH: numbers of a word of a page.
    """
    row, first, start, length, before = own_tile(tiles, starts, contexts, tile_tokens)
    members = tl.arange(0, M)
    tokens = first + members // GROUP
    heads = tl.program_id(1) * GROUP + members % GROUP
    real = (members < tile_tokens * GROUP) & (tokens < length) & (heads < HEADS)
    positions = before + tokens
    rows = members // GROUP * HEADS + heads
    base = (start + first).to(tl.int64) * HEADS
    dims, turned = tl.arange(0, RANK_PADDED), tl.arange(0, ROTATED_PADDED)
    own = query + base * (RANK + ROTATED) + rows[:, None] * (RANK + ROTATED)
    q = tl.load(own + dims[None, :], mask=real[:, None] & (dims < RANK)[None, :], other=0.0)
    held = real[:, None] & (turned < ROTATED)[None, :]
    q_rotated = tl.load(own + RANK + turned[None, :], mask=held, other=0.0)
    if HEAD_SCALES:
        scale = scale * tl.load(scales)
    scale = tl.full([M], scale, tl.float32)
    if EACH == 2:
        size = tl.maximum(sizes(q), sizes(q_rotated))
        scale = scale * size
        queries = apart(q, size) + apart(q_rotated, size)
    else:
        queries = (q.to(FACTOR), q_rotated.to(FACTOR))

    end = before + tl.minimum(first + tile_tokens, length)
    low, high = own_stretch((end + N - 1) // N, partials)
    unit = scale * 1.4426950408889634  # of a score, in units of ln 2
    row_of_table = tables + row.to(tl.int64) * table_width
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = (tl.zeros([M, RANK_PADDED // EACH], tl.float32),) * EACH
    ceiling = tl.full([], 1e-30 if ROW_SCALES else 1.0, tl.float32)
    for number in range(low, high):
        at = number * N + tl.arange(0, N)
        wanted = at < end
        entries = find_rows(row_of_table, at, wanted, 0, 1, BLOCK_SIZE)
        places = pages + entries * ((RANK + ROTATED) // EACH)
        compressed = load_rows(places, wanted, RANK // EACH, RANK_PADDED // EACH, True)
        rotated = load_rows(places + RANK // EACH, wanted, ROTATED // EACH, ROTATED_PADDED // EACH, True)
        values = WIDEN(compressed, FACTOR)
        rest = WIDEN(rotated, FACTOR)
        scores = products(queries, values + rest)
        if ROW_SCALES:
            own_scales = tl.load(scales + entries, mask=wanted, other=0.0)
            scores = scores * own_scales[None, :]
        scores = tl.where((at[None, :] <= positions[:, None]) & wanted[None, :], scores, float("-inf"))
        weights, faded, largest, total = weigh(scores, unit, largest, total)
        if ROW_SCALES:
            weights, faded, ceiling = in_ceiling(weights, faded, own_scales, ceiling)
        sums = mix(sums, weights, faded, values)

    if HEAD_SCALES:
        ceiling = tl.load(scales)
    result, logsum = outcome(sums, largest, total, ceiling)
    leave(result, logsum, out, partials, logsums, base, rows, rows_in_step, dims, real, RANK)
