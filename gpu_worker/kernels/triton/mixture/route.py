"""What `kernels/route.py` defines, in one launch: a program takes a token.

Read: 4 bytes for each block. The blocks of a token are few, so that the best of those that are left is looked
for as many times; of equal ones it is the first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.interface import Routing


@triton.jit
def choose_blocks(
    said,
    correction,
    shares,
    chosen,
    scale,
    BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    PLACES: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    """PLACES: PER_TOKEN, filled up to a power of two."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < BLOCKS
    heard = tl.load(said + token * BLOCKS + at, mask=inside, other=float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-heard))
    else:
        scores = tl.exp(heard - tl.max(heard, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    ranks = scores
    if correction is not None:
        ranks += tl.load(correction + at, mask=inside, other=0.0)
    ranks = tl.where(inside, ranks, float("-inf"))
    places = tl.arange(0, PLACES)
    kept = tl.zeros([PLACES], tl.float32)
    numbers = tl.zeros([PLACES], tl.int32)
    for place in tl.static_range(PER_TOKEN):
        best = tl.max(ranks, axis=0)
        # Where nothing is a number it is the last.
        number = tl.min(tl.where(ranks == best, at, BLOCKS - 1), axis=0)
        share = tl.sum(tl.where(at == number, scores, 0.0), axis=0)
        kept = tl.where(places == place, share, kept)
        numbers = tl.where(places == place, number, numbers)
        ranks = tl.where(at == number, float("-inf"), ranks)
    if NORMALIZED:
        kept = kept / (tl.sum(kept, axis=0) + 1e-20)
    to = token * PER_TOKEN + places
    tl.store(shares + to, kept * scale, mask=places < PER_TOKEN)
    tl.store(chosen + to, numbers.to(tl.int64), mask=places < PER_TOKEN)


class TritonRoute:
    """See `Route`; of blocks without groups."""

    def __init__(self, routing: Routing, correction: Tensor | None) -> None:
        self._routing, self._correction = routing, correction

    def __call__(self, said: Tensor) -> tuple[Tensor, Tensor]:
        routing, (tokens, blocks) = self._routing, said.shape
        shares = torch.empty((tokens, routing.per_token), dtype=torch.float32, device=said.device)
        chosen = torch.empty((tokens, routing.per_token), dtype=torch.int64, device=said.device)
        padded = triton.next_power_of_2(blocks)
        choose_blocks[(tokens,)](
            said.contiguous(),
            self._correction,
            shares,
            chosen,
            routing.scale,
            BLOCKS=blocks,
            PADDED=padded,
            PER_TOKEN=routing.per_token,
            PLACES=triton.next_power_of_2(routing.per_token),
            SIGMOID=routing.scores == "sigmoid",
            NORMALIZED=routing.normalized,
            num_warps=max(1, min(4, padded // 128)),
        )
        return shares, chosen
