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

from gpu_worker.kernels.triton.fp8 import widen


@triton.jit
def absorb_rows(
    largest,
    total,
    mixed,
    at,
    wanted,
    q_compressed,
    q_rotated,
    pages,
    scales,
    row_of_table,
    positions,
    scale,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    ROTATED: tl.constexpr,
    ROTATED_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    FACTOR: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The online softmax with the positions `at` taken in. Not MASKED: all queries see all of them."""
    dims, turned = tl.arange(0, RANK_PADDED), tl.arange(0, ROTATED_PADDED)
    blocks = tl.load(row_of_table + at // BLOCK_SIZE, mask=wanted, other=0)
    entries = blocks.to(tl.int64) * BLOCK_SIZE + at % BLOCK_SIZE
    places = pages + entries[:, None] * (RANK + ROTATED)
    if MASKED or RANK < RANK_PADDED or ROTATED < ROTATED_PADDED:
        inside = wanted[:, None]
        compressed = tl.load(places + dims[None, :], mask=inside & (dims < RANK)[None, :], other=0.0)
        mask = inside & (turned < ROTATED)[None, :]
        rotated = tl.load(places + RANK + turned[None, :], mask=mask, other=0.0)
    else:
        compressed = tl.load(places + dims[None, :])
        rotated = tl.load(places + RANK + turned[None, :])
    compressed = widen(compressed, FACTOR, NATIVE_FP8)
    rotated = widen(rotated, FACTOR, NATIVE_FP8)
    scores = tl.dot(q_compressed, tl.trans(compressed), input_precision="ieee")
    scores = tl.dot(q_rotated, tl.trans(rotated), scores, input_precision="ieee")
    if SCALED:
        worth = tl.load(scales + entries, mask=wanted, other=0.0)
        scores = scores * worth[None, :]
    if MASKED:
        scores = tl.where((at[None, :] <= positions[:, None]) & wanted[None, :], scores, float("-inf"))

    unit = scale * 1.4426950408889634  # of a score, in units of ln 2: left for the exponential to multiply by
    risen = tl.maximum(largest, tl.max(scores, axis=1) * unit)
    base = tl.where(risen == float("-inf"), 0.0, risen)  # a row that has seen nothing yet
    weights = tl.exp2(scores * unit - base[:, None])
    faded = tl.exp2(largest - base)
    total = total * faded + tl.sum(weights, axis=1)
    if SCALED:
        weights = weights * worth[None, :]
    mixed = mixed * faded[:, None]
    mixed = tl.dot(weights.to(FACTOR), compressed, mixed, input_precision="ieee")
    return risen, total, mixed


@triton.jit(do_not_specialize=["table_width", "rows_in_step", "tile_tokens"])
def attend_latent(
    query,
    pages,
    scales,
    head_scales,
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
    SCALED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    FACTOR: tl.constexpr,
):
    if tiles is None:  # a row is a tile
        row = tl.program_id(0)
        first = 0
    else:
        row = tl.load(tiles + 2 * tl.program_id(0))
        first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    before = tl.load(contexts + row) - length
    members = tl.arange(0, M)
    tokens = first + members // GROUP
    heads = tl.program_id(1) * GROUP + members % GROUP
    real = (members < tile_tokens * GROUP) & (tokens < length) & (heads < HEADS)
    positions = before + tokens
    dims, turned = tl.arange(0, RANK_PADDED), tl.arange(0, ROTATED_PADDED)
    rows = (start + tokens).to(tl.int64) * HEADS + heads
    held = real[:, None] & (dims < RANK)[None, :]
    own = query + rows[:, None] * (RANK + ROTATED)
    if head_scales is not None:
        scale = scale * tl.load(head_scales)
    q_compressed = tl.load(own + dims[None, :], mask=held, other=0.0).to(FACTOR)
    mask = real[:, None] & (turned < ROTATED)[None, :]
    q_rotated = tl.load(own + RANK + turned[None, :], mask=mask, other=0.0).to(FACTOR)

    end = before + tl.minimum(first + tile_tokens, length)
    count = (end + N - 1) // N
    low, high = 0, count
    if partials is not None:
        share = tl.cdiv(count, tl.num_programs(2))
        low = tl.program_id(2) * share
        high = tl.minimum(low + share, count)
    row_of_table = tables + row.to(tl.int64) * table_width
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, RANK_PADDED], tl.float32)
    # Tiles that all queries see as a whole need no masks: all but the last ones.
    whole = tl.maximum(low, tl.minimum((before + first + 1) // N, high))
    for masked in tl.static_range(2):
        for number in range(whole if masked else low, high if masked else whole):
            at = number * N + tl.arange(0, N)
            largest, total, mixed = absorb_rows(
                largest,
                total,
                mixed,
                at,
                at < end,
                q_compressed,
                q_rotated,
                pages,
                scales,
                row_of_table,
                positions,
                scale,
                RANK,
                RANK_PADDED,
                ROTATED,
                ROTATED_PADDED,
                BLOCK_SIZE,
                SCALED,
                NATIVE_FP8,
                FACTOR,
                masked,
            )

    divisor = tl.where(total == 0.0, 1.0, total)  # nothing was seen
    result = mixed / divisor[:, None]
    if head_scales is not None:
        result = result * tl.load(head_scales)
    if partials is None:
        tl.store(out + rows[:, None] * RANK + dims[None, :], result.to(out.dtype.element_ty), mask=held)
    else:
        at_split = tl.program_id(2).to(tl.int64) * rows_in_step + rows
        tl.store(partials + at_split[:, None] * RANK + dims[None, :], result, mask=held)
        tl.store(logsums + at_split, largest + tl.log2(divisor), mask=real)
