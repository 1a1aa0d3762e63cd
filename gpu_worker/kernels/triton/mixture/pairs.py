"""Pairs of a token and one of its experts, sorted by expert without asking the device for any number.

A pair's number is token * experts_per_token + the expert's place among the token's experts. Sorted pairs of
one expert lie side by side, in the order of the tokens, and are cut into tiles of a few pairs. Only the
device knows how many tiles there are. The list of tiles has room for the largest possible number; an unused
tile has expert -1:

    selected    token 0: 7 2 │ token 1: 2 5 │ token 2: 2 7                    pairs 0 to 5
    order       1 2 4 │ 3 │ 0 5                                               of experts 2, 5 and 7
    tiles       2: 0 to 2 │ 2: 2 to 3 │ 5: 3 to 4 │ 7: 4 to 6 │ -1            of two pairs each

A program takes an expert and reads the experts of all pairs, 8 bytes each, twice. That is little beside the
experts' weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNKS = (1024, 8192)
"""Pairs that a program reads at a time, of few and of many."""


@triton.jit(do_not_specialize=["pairs"])
def count_pairs(selected_experts, counts, pairs, CHUNK: tl.constexpr):
    expert, count = tl.program_id(0), 0
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(selected_experts + at, mask=at < pairs, other=-1) == expert
        count += tl.sum(own.to(tl.int32), axis=0)
    tl.store(counts + expert, count)


@triton.jit(do_not_specialize=["pairs", "room"])
def place_pairs(
    selected_experts,
    counts,
    order,
    tiles,
    pairs,
    room,
    EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """`room`: length of the list of tiles. ROWS: pairs of a tile."""
    expert = tl.program_id(0)
    others = tl.arange(0, EXPERTS_PADDED)
    before = tl.load(counts + others, mask=others < expert, other=0)
    begin = tl.sum(before, axis=0)
    tile = tl.sum((before + ROWS - 1) // ROWS, axis=0)
    end = begin + tl.load(counts + expert)
    for first in range(begin, end, ROWS):
        tl.store(tiles + 3 * tile, expert)
        tl.store(tiles + 3 * tile + 1, first)
        tl.store(tiles + 3 * tile + 2, end)
        tile += 1
    if expert == EXPERTS - 1:
        for unused in range(tile, room):
            tl.store(tiles + 3 * unused, -1)

    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(selected_experts + at, mask=at < pairs, other=-1) == expert
        counted = tl.cumsum(own.to(tl.int32), axis=0)
        tl.store(order + begin + counted - 1, at, mask=own)
        begin += tl.sum(own.to(tl.int32), axis=0)


def sort_pairs(selected_experts: Tensor, num_experts: int, rows: int) -> tuple[Tensor, Tensor]:
    """Sort pairs by expert and cut them into tiles of `rows` pairs.

    `selected_experts`: int64 [tokens, experts_per_token]. Returns the pairs' order, int32 [pairs], and tiles,
    int32 [n, 3]: expert, first place in the order, end of the expert's places. An unused tile has expert -1.
    """
    pairs, device = selected_experts.numel(), selected_experts.device
    room = pairs // rows + min(num_experts, pairs)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    tiles = torch.empty((room, 3), dtype=torch.int32, device=device)
    selected_experts = selected_experts.contiguous()
    chunk = CHUNKS[pairs > CHUNKS[0]]
    warps = chunk // 512 if chunk > 1024 else 4
    count_pairs[(num_experts,)](selected_experts, counts, pairs, CHUNK=chunk, num_warps=warps)
    place_pairs[(num_experts,)](
        selected_experts,
        counts,
        order,
        tiles,
        pairs,
        room,
        EXPERTS=num_experts,
        EXPERTS_PADDED=triton.next_power_of_2(num_experts),
        ROWS=rows,
        CHUNK=chunk,
        num_warps=warps,
    )
    return order, tiles
