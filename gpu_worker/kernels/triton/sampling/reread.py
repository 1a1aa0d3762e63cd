"""What a program of `draw.py` finds by reading its logits again: an edge, and the token drawn up to it."""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.sampling.held import (
    MARGIN,
    count_of,
    depth,
    drawn_of,
    gumbel,
    is_before,
    rough_gumbel,
    score_of,
    uniform,
)

PIVOTS = tl.constexpr(4)
"""Scores that one pass over a row's logits compares all tokens with."""


@triton.jit
def edge_of_best(logits, best, temperature, wanted, floor, count, vocabulary, TILE: tl.constexpr):
    """The edge after the best `wanted` tokens of the `count` that are no deeper than `floor`, which are more.

    Returns its depth and the last token of that depth before the edge.
    """
    above, within = tl.full([], -1, tl.int64), floor.to(tl.int64)
    before = 0  # `before` tokens are no deeper than `above`, `count` tokens are no deeper than `within`
    steps = tl.arange(0, PIVOTS) + 1
    while (within - above > 1) & (count > wanted):
        pivots = above + (within - above) * steps // (PIVOTS + 1)
        each = tl.zeros([TILE, PIVOTS], tl.int32)
        for start in range(0, vocabulary, TILE):
            at = start + tl.arange(0, TILE)
            depths = depth(score_of(logits, at, at < vocabulary, best, temperature))
            each += (depths[:, None] <= pivots[None, :]).to(tl.int32)
        totals = tl.sum(each, axis=0)
        enough = totals >= wanted
        count = tl.min(tl.where(enough, totals, count), axis=0)
        within = tl.min(tl.where(enough, pivots, within), axis=0)
        before = tl.max(tl.where(enough, before, totals), axis=0)
        above = tl.max(tl.where(enough, above, pivots), axis=0)
    edge = within.to(tl.int32)
    last = vocabulary
    if count > wanted:  # of the tokens at the edge, which are equal, keep the lower ones
        missing = wanted - before
        for start in range(0, vocabulary, TILE):
            at = start + tl.arange(0, TILE)
            equal = depth(score_of(logits, at, at < vocabulary, best, temperature)) == edge
            place = tl.cumsum(equal.to(tl.int32), axis=0)
            last = tl.min(tl.where(equal & (place == missing), at, last), axis=0)
            missing -= tl.sum(equal.to(tl.int32), axis=0)
    return edge, last


@triton.jit
def winner(logits, best, temperature, edge, last, word0, word1, vocabulary, TILE: tl.constexpr):
    """The mass of a row's tokens before the edge, and the token drawn from them; -1 if there is none.

    Each place of a tile has its own mass, and its own two greatest sums of score and noise, until the end.
    """
    masses = tl.zeros([TILE], tl.float64)
    most, second = (tl.full([TILE], float("-inf"), tl.float32),) * 2
    tokens = tl.full([TILE], -1, tl.int32)
    for start in range(0, vocabulary, TILE):
        at = start + tl.arange(0, TILE)
        own = score_of(logits, at, at < vocabulary, best, temperature)
        kept = is_before(depth(own), at, edge, last)
        masses += tl.where(kept, tl.exp(own), 0.0).to(tl.float64)
        rough = tl.where(kept, own + rough_gumbel(uniform(at, word0, word1)), float("-inf"))
        better = rough > most
        second = tl.where(better, most, tl.maximum(second, rough))
        tokens = tl.where(better, at, tokens)
        most = tl.where(better, rough, most)
    peak = tl.max(most)
    close = (tokens >= 0) & (most >= peak - MARGIN)
    token = tl.max(tl.where(close, tokens, -1))
    if (token >= 0) & (tl.sum(((tokens >= 0) & (second >= peak - MARGIN)).to(tl.int32)) > 0):
        # Both of a place are close to the greatest: all that are close are looked for again.
        token = closest(logits, best, temperature, edge, last, peak, word0, word1, vocabulary, TILE)
    elif count_of(close) > 1:
        scores = score_of(logits, tokens, close, best, temperature)
        noisy = tl.where(close, scores + gumbel(uniform(tokens, word0, word1)), float("-inf"))
        token = tl.min(tl.where(close & (noisy == tl.max(noisy)), tokens, vocabulary))
    return tl.sum(masses), token


@triton.jit
def closest(logits, best, temperature, edge, last, peak, word0, word1, vocabulary, TILE: tl.constexpr):
    """Of a row's tokens before the edge whose sum of score and noise is roughly `peak` the one with the
    greatest, exactly."""
    most, token = tl.full([], float("-inf"), tl.float32), tl.full([], -1, tl.int32)
    for start in range(0, vocabulary, TILE):
        at = start + tl.arange(0, TILE)
        own = score_of(logits, at, at < vocabulary, best, temperature)
        kept = is_before(depth(own), at, edge, last)
        kept = kept & (own + rough_gumbel(uniform(at, word0, word1)) >= peak - MARGIN)
        if count_of(kept) > 0:
            found, _ = drawn_of(own, kept, at, word0, word1, vocabulary)
            noisy = tl.max(tl.where(at == found, own, float("-inf"))) + gumbel(uniform(found, word0, word1))
            token = tl.where(noisy > most, found, token)
            most = tl.maximum(noisy, most)
    return token
