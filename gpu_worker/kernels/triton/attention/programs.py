"""What a program of attention computes, and where it leaves it: see `launch.py` and `combine.py`."""

import triton
import triton.language as tl


@triton.jit
def own_tile(tiles, starts, contexts, tile_tokens):
    """A row of the step and the first of its tokens in the tile; their start, length, and what is before.

    `tiles`: see `Launch`. Of a tile that is not there the length is 0, and nothing is before it.
    """
    if tiles is None:  # a row is a tile
        row = tl.program_id(0)
        first = 0
    else:
        row = tl.load(tiles + 2 * tl.program_id(0))
        first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    before = tl.load(contexts + row) - length
    there = length <= tile_tokens if tiles is None else first >= 0
    return row, tl.maximum(first, 0), start, tl.where(there, length, 0), tl.where(there, before, 0)


@triton.jit
def own_stretch(count, partials):
    """Of a context of `count` tiles of keys the first, and the one behind the last."""
    low, high = 0, count
    if partials is not None:
        share = tl.cdiv(count, tl.num_programs(2))
        low = tl.program_id(2) * share
        high = tl.minimum(low + share, count)
    return low, high


@triton.jit
def leave(result, logsum, out, partials, logsums, base, rows, rows_in_step, dims, real, DIM: tl.constexpr):
    """Store `result` [M, D] as the rows from `base` on that `rows` [M] says; a stretch's as a partial one."""
    to = out
    if partials is not None:
        base += tl.program_id(2).to(tl.int64) * rows_in_step
        to = partials
        tl.store(logsums + base + rows, logsum, mask=real)
    places = to + base * DIM + rows[:, None] * DIM + dims[None, :]
    tl.store(places, result.to(to.dtype.element_ty), mask=real[:, None] & (dims < DIM)[None, :])
