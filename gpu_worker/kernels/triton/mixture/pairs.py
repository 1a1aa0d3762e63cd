"""A mixture's tokens in the order of the blocks that they go to, without asking the device how many go where.

A pair is a token and one of its blocks. Pairs of one block lie side by side, in the order of the tokens, and
are cut into tiles of a few rows. How many tiles there are is known on the device alone; there is room for as
many as there could be, and what is not needed says so:

    chosen    token 0: 7 2 │ token 1: 2 5 │ token 2: 2 7        pairs 0 to 5
    order     1 2 4 │ 3 │ 0 5                                   of block 2, of block 5, of block 7
    tiles     2: 0 to 2 │ 2: 2 to 3 │ 5: 3 to 4 │ 7: 4 to 6 │ none     of two rows each

A program takes a block, and reads all pairs, 8 bytes each, twice: they are few beside the weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024
"""Pairs that a program has before it at a time."""


@triton.jit(do_not_specialize=["pairs"])
def count_pairs(chosen, counts, pairs, CHUNK: tl.constexpr):
    block, count = tl.program_id(0), 0
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(chosen + at, mask=at < pairs, other=-1) == block
        count += tl.sum(own.to(tl.int32), axis=0)
    tl.store(counts + block, count)


@triton.jit(do_not_specialize=["pairs", "room"])
def place_pairs(
    chosen,
    counts,
    order,
    tiles,
    pairs,
    room,
    BLOCKS: tl.constexpr,
    BLOCKS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """`room`: for how many tiles there is room."""
    block = tl.program_id(0)
    others = tl.arange(0, BLOCKS_PADDED)
    before = tl.load(counts + others, mask=others < block, other=0)
    begin = tl.sum(before, axis=0)
    tile = tl.sum((before + ROWS - 1) // ROWS, axis=0)
    end = begin + tl.load(counts + block)
    for first in range(begin, end, ROWS):
        tl.store(tiles + 3 * tile, block)
        tl.store(tiles + 3 * tile + 1, first)
        tl.store(tiles + 3 * tile + 2, end)
        tile += 1
    if block == BLOCKS - 1:
        for unused in range(tile, room):
            tl.store(tiles + 3 * unused, -1)

    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(chosen + at, mask=at < pairs, other=-1) == block
        ranks = tl.cumsum(own.to(tl.int32), axis=0)
        tl.store(order + begin + ranks - 1, at, mask=own)
        begin += tl.sum(own.to(tl.int32), axis=0)


def grouped(chosen: Tensor, blocks: int, rows: int) -> tuple[Tensor, Tensor]:
    """Order of the pairs, int32 [pairs], and tiles, int32 [n, 3]: block, first place, end of the block's.
    A tile that is not needed has block -1.

    `chosen`: int64 [tokens, blocks of a token]. `rows`: of a tile.
    """
    pairs, device = chosen.numel(), chosen.device
    room = pairs // rows + min(blocks, pairs)
    counts = torch.empty(blocks, dtype=torch.int32, device=device)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    tiles = torch.empty((room, 3), dtype=torch.int32, device=device)
    chosen = chosen.contiguous()
    count_pairs[(blocks,)](chosen, counts, pairs, CHUNK=CHUNK, num_warps=4)
    place_pairs[(blocks,)](
        chosen,
        counts,
        order,
        tiles,
        pairs,
        room,
        BLOCKS=blocks,
        BLOCKS_PADDED=triton.next_power_of_2(blocks),
        ROWS=rows,
        CHUNK=CHUNK,
        num_warps=4,
    )
    return order, tiles
