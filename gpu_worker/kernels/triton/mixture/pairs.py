"""Pairs of a token and one of its experts, sorted by expert without asking the device for any number.

A pair's number is token * experts_per_token + the expert's place among the token's experts. Sorted pairs of
one expert lie side by side, in the order of the tokens, and are cut into tiles of a few pairs. Only the
device knows how many tiles there are. The list of tiles has room for the largest possible number; an unused
tile has expert -1:

    selected    token 0: 7 2 │ token 1: 2 5 │ token 2: 2 7                    pairs 0 to 5
    order       1 2 4 │ 3 │ 0 5                                               of experts 2, 5 and 7
    tiles       2: 0 to 2 │ 2: 2 to 3 │ 5: 3 to 4 │ 7: 4 to 6 │ -1            of two pairs each

Of few pairs, as in decodes, a single program compares all with each other, in one launch. Of more pairs a
program takes an expert and reads the experts of all pairs, 8 bytes each, twice. That is little beside the
experts' weights.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW = 32
"""Pairs that a program compares with each other. One warp does it: for more, that takes too long."""
CHUNK, MANY = 1024, 8192
"""Pairs that a program reads at a time: CHUNK if there are no more pairs than that, or else MANY."""


@dataclass(frozen=True, slots=True)
class RoutedPairs:
    """The pairs of a step, which both products of a mixture take."""

    order: Tensor
    """Sorted pairs, int32 [pairs]."""
    tiles: Tensor
    """int32 [n, 3]: expert, first place in the order, end of the expert's places. Unused: expert -1."""
    rows: int
    """Pairs of a tile, at most."""
    experts_per_token: int
    routing_weights: Tensor
    """float32 [tokens, experts_per_token]."""


@triton.jit(do_not_specialize=["pairs", "room", "rows"])
def sort_few_pairs(
    selected_experts,
    order,
    tiles,
    pairs,
    room,
    rows,
    ROOM: tl.constexpr,
    FEW: tl.constexpr,
):
    """`pairs`: at most FEW. `room`: length of the list of tiles, at most ROOM. `rows`: pairs of a tile."""
    pair = tl.arange(0, FEW)
    there = pair < pairs
    experts = tl.load(selected_experts + pair, mask=there, other=1 << 30).to(tl.int32)
    # The same as a column: [i, j] compares pair i with pair j.
    number = pair[:, None]
    column = tl.load(selected_experts + number, mask=number < pairs, other=1 << 30).to(tl.int32)
    same, lower = column == experts[None, :], column < experts[None, :]
    earlier = same & (number < pair[None, :])
    later = same & (number > pair[None, :])
    place = tl.sum((lower | earlier).to(tl.int32), axis=0)
    end = place + 1 + tl.sum(later.to(tl.int32), axis=0)
    tl.store(order + place, pair, mask=there)
    # A tile begins with a pair before which `rows`, or twice as many, .. are of the same expert.
    begins = there & (tl.sum(earlier.to(tl.int32), axis=0) % rows == 0)
    begin = (tl.sum(later.to(tl.int32), axis=1) % rows == 0)[:, None] & (number < pairs)
    tile = tiles + 3 * tl.sum(((lower | earlier) & begin).to(tl.int32), axis=0)
    tl.store(tile, experts, mask=begins)
    tl.store(tile + 1, place, mask=begins)
    tl.store(tile + 2, end, mask=begins)
    unused = tl.arange(0, ROOM)
    tl.store(tiles + 3 * unused, -1, mask=(unused >= tl.sum(begins.to(tl.int32))) & (unused < room))


@triton.jit(do_not_specialize=["pairs"])
def count_pairs(selected_experts, counts, pairs, CHUNK: tl.constexpr):
    expert, count = tl.program_id(0), 0
    for start in range(0, pairs, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(selected_experts + at, mask=at < pairs, other=-1) == expert
        count += tl.sum(own.to(tl.int32), axis=0)
    tl.store(counts + expert, count)


@triton.jit(do_not_specialize=["pairs", "room", "rows"])
def place_pairs(
    selected_experts,
    counts,
    order,
    tiles,
    pairs,
    room,
    rows,
    EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """`room`: length of the list of tiles. `rows`: pairs of a tile."""
    expert = tl.program_id(0)
    others = tl.arange(0, EXPERTS_PADDED)
    before = tl.load(counts + others, mask=others < expert, other=0)
    begin = tl.sum(before, axis=0)
    tile = tl.sum((before + rows - 1) // rows, axis=0)
    end = begin + tl.load(counts + expert)
    for first in range(begin, end, rows):
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


def sort_pairs(selected_experts: Tensor, routing_weights: Tensor, num_experts: int, rows: int) -> RoutedPairs:
    """Sort pairs by expert and cut them into tiles of `rows` pairs.

    `selected_experts`: int64, `routing_weights`: float32, both [tokens, experts_per_token].
    """
    pairs, device = selected_experts.numel(), selected_experts.device
    room = pairs // rows + min(num_experts, pairs)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    order = torch.empty(pairs, dtype=torch.int32, device=device)
    tiles = torch.empty((room, 3), dtype=torch.int32, device=device)
    selected_experts = selected_experts.contiguous()
    weights = routing_weights.contiguous()
    routed = RoutedPairs(order, tiles, rows, selected_experts.shape[1], weights)
    if pairs <= FEW:
        sort_few_pairs[(1,)](
            selected_experts, order, tiles, pairs, room, rows, ROOM=2 * FEW, FEW=FEW, num_warps=1
        )
        return routed
    chunk, warps = (CHUNK, 4) if pairs <= CHUNK else (MANY, 16)
    count_pairs[(num_experts,)](selected_experts, counts, pairs, CHUNK=chunk, num_warps=warps)
    place_pairs[(num_experts,)](
        selected_experts,
        counts,
        order,
        tiles,
        pairs,
        room,
        rows,
        EXPERTS=num_experts,
        EXPERTS_PADDED=triton.next_power_of_2(num_experts),
        CHUNK=chunk,
        num_warps=warps,
    )
    return routed
