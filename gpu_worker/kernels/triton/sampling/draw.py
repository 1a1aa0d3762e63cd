"""Draws tokens from filtered logits without sorting. `kernels/reference/sampling.py` defines the result.

A row's tokens are ordered by score, the greatest first. Of equal scores the lower token comes first. Each
filter keeps the first tokens of that order, up to an edge:

    order     ▇ ▇ ▆ ▅ ▅ ▃ ▂ ▂ ▁ ▁ ▁ ▁ · · ·
    min-p     ─────────────────┘                  the edge follows from the best score
    top-k     ───────────┘                        found by bisection: how many tokens are before a score?
    top-p     ? ? ? ? ? ?                         only checked for a token that was drawn

Among the tokens up to the edge the one with the greatest sum of score and noise is drawn. Top-p keeps it if
the tokens before it have less than `top_p` of the mass. Otherwise top-p drops it and all tokens after it, so
it becomes the new edge, and a token before it is drawn. Few such rounds are needed: tokens are drawn with
their probabilities, so the first drawn token is kept with a probability of at least `top_p`.

A program handles one row. It reads the row's scores, 4 bytes each, once in each of these passes:

    1                   subtracts the best score, divides by the temperature, writes the score
    2 + up to 14        with top-k: each counts the tokens before four scores
    1                   draws; with top-p 2 or more
"""

import triton
import triton.language as tl

from gpu_worker.kernels.sampling import INTEGERS, NUMBERS

TEMPERATURE = tl.constexpr(NUMBERS["temperature"])
TOP_P = tl.constexpr(NUMBERS["top_p"])
MIN_P = tl.constexpr(NUMBERS["min_p"])
TOP_K = tl.constexpr(INTEGERS["top_k"])
SEED = tl.constexpr(INTEGERS["seed"])
SEQUENCE_INDEX = tl.constexpr(INTEGERS["sequence_index"])
DROPPED_TOKENS = tl.constexpr(INTEGERS["dropped_tokens"])

LOWEST = tl.constexpr(0x7F800000)
"""The `depth` of -inf."""
LEAST = tl.constexpr(-2.82)
"""A number below the least noise, -log(-log(2^-24)), and so below the best score, 0, with any noise."""
PIVOTS = tl.constexpr(4)
"""Scores that one pass of the bisection for top-k compares all tokens with."""


@triton.jit
def depth(scores):
    """Number of floats between a score and 0, the best score. It ascends where scores descend."""
    return scores.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def is_before(depths, at, edge, last):
    """Whether each token comes before the edge: it is less deep, or as deep and not beyond token `last`."""
    return (depths < edge) | ((depths == edge) & (at <= last))


@triton.jit
def uniform(at, word0, word1):
    """A random number in (0, 1) for each token: see `kernels/reference/noise.py`."""
    bits = (at.to(tl.uint32) * 0x9E3779B1 + word0) ^ word1
    bits ^= bits >> 16
    bits *= 0x21F0AAAD
    bits ^= bits >> 15
    bits *= 0xD35A2D97
    bits ^= bits >> 15
    return ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / (1 << 23))


@triton.jit
def gumbel(chance):
    """-log(-log(1 - chance)), in float64: a GPU's own logarithm is too coarse where noise is large."""
    waited = -tl.log(1.0 - chance.to(tl.float64))
    return -tl.log(waited.to(tl.float32).to(tl.float64)).to(tl.float32)


@triton.jit
def scale(logits, scores, best, temperature, floor, vocabulary, TILE: tl.constexpr):
    """Write the scores of a row. Returns the number of scores that are no deeper than `floor`."""
    count = 0
    for start in range(0, vocabulary, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < vocabulary
        own = tl.div_rn(tl.load(logits + at, mask=inside, other=float("-inf")) - best, temperature)
        tl.store(scores + at, own, mask=inside)
        count += tl.sum((inside & (depth(own) <= floor)).to(tl.int32), axis=0)
    return count


@triton.jit
def edge_of_best(scores, wanted, floor, count, vocabulary, TILE: tl.constexpr):
    """The edge after the best `wanted` tokens of the `count` that are no deeper than `floor`.

    Returns its depth and the last token of that depth before the edge.
    """
    above, within = tl.full([], -1, tl.int64), floor.to(tl.int64)
    before = 0  # `before` tokens are no deeper than `above`, `count` tokens are no deeper than `within`
    steps = tl.arange(0, PIVOTS) + 1
    while (within - above > 1) & (count > wanted):
        pivots = above + (within - above) * steps // (PIVOTS + 1)
        counts = tl.zeros([PIVOTS], tl.int32)
        for start in range(0, vocabulary, TILE):
            at = start + tl.arange(0, TILE)
            depths = depth(tl.load(scores + at, mask=at < vocabulary, other=float("nan")))
            counts += tl.sum((depths[:, None] <= pivots[None, :]).to(tl.int32), axis=0)
        enough = counts >= wanted
        count = tl.min(tl.where(enough, counts, count), axis=0)
        within = tl.min(tl.where(enough, pivots, within), axis=0)
        before = tl.max(tl.where(enough, before, counts), axis=0)
        above = tl.max(tl.where(enough, above, pivots), axis=0)
    edge = within.to(tl.int32)
    last = vocabulary
    if count > wanted:  # of the tokens at the edge, which are equal, keep the lower ones
        missing = wanted - before
        for start in range(0, vocabulary, TILE):
            at = start + tl.arange(0, TILE)
            equal = depth(tl.load(scores + at, mask=at < vocabulary, other=float("nan"))) == edge
            place = tl.cumsum(equal.to(tl.int32), axis=0)
            last = tl.min(tl.where(equal & (place == missing), at, last), axis=0)
            missing -= tl.sum(equal.to(tl.int32), axis=0)
    return edge, last


@triton.jit
def winner(scores, edge, last, word0, word1, vocabulary, TILE: tl.constexpr):
    """The mass of the tokens before the edge, and the token drawn from them; -1 if there is none.

    The best token has mass 1.
    """
    mass = tl.full([], 0.0, tl.float64)
    top, drawn = tl.full([], LEAST, tl.float32), -1
    for start in range(0, vocabulary, TILE):
        at = start + tl.arange(0, TILE)
        own = tl.load(scores + at, mask=at < vocabulary, other=float("nan"))
        own = tl.where(is_before(depth(own), at, edge, last), own, float("-inf"))
        mass += tl.sum(tl.exp(own).to(tl.float64), axis=0)
        chance = uniform(at, word0, word1)
        # Noise above t needs a chance below 1 - exp(-exp(-t)) < exp(-t). In few tiles a token can win, so the
        # logarithms of the others are not computed.
        if tl.max((chance < tl.exp(own - top) * 1.0001).to(tl.int32), axis=0) > 0:
            noisy = own + gumbel(chance)
            most = tl.max(noisy, axis=0)
            if most > top:
                top = most
                drawn = tl.min(tl.where(noisy == most, at, vocabulary), axis=0)
    return mass, drawn


@triton.jit(do_not_specialize=["vocabulary"], do_not_specialize_on_alignment=["rows", "slots", "positions"])
def draw_rows(
    logits,
    scores,
    rows,
    slots,
    positions,
    best,
    numbers,
    integers,
    tokens,
    vocabulary,
    NUMBER_COLUMNS: tl.constexpr,
    INTEGER_COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Overwrite `tokens` of the rows that draw. `logits` and `scores` may be the same tensor."""
    row = tl.load(rows + tl.program_id(0))
    slot = tl.load(slots + row)
    numbers += slot * NUMBER_COLUMNS
    temperature, top_p, min_p = (
        tl.load(numbers + TEMPERATURE),
        tl.load(numbers + TOP_P),
        tl.load(numbers + MIN_P),
    )
    greatest = tl.load(best + row)
    logits += row * vocabulary
    scores += row * vocabulary
    # A row without a finite best logit draws nothing: infinity less itself is NaN.
    if (temperature > 0) & (greatest - greatest == 0):
        own = integers + slot * INTEGER_COLUMNS
        top_k, seed, sequence = tl.load(own + TOP_K), tl.load(own + SEED), tl.load(own + SEQUENCE_INDEX)
        # The position in the whole text, tokens that a rolling context has dropped included.
        position = tl.load(positions + tl.program_id(0)) + tl.load(own + DROPPED_TOKENS)
        zero = tl.full([], 0, tl.int32)
        word0, word1, _, _ = tl.philox(seed, position.to(tl.int32), sequence.to(tl.int32), zero, zero)

        edge = tl.full([], LOWEST, tl.int32)
        last = vocabulary
        if min_p > 0:  # the edge is the least score whose rounded exp is at least min_p
            edge = depth(tl.log(min_p.to(tl.float64) * (1 - 2.0**-25)).to(tl.float32))
        count = scale(logits, scores, greatest, temperature, edge, vocabulary, TILE)
        tl.debug_barrier()  # threads read scores that other threads wrote
        if (top_k > 0) & (top_k < count):
            edge, last = edge_of_best(scores, top_k.to(tl.int32), edge, count, vocabulary, TILE)

        mass, token = winner(scores, edge, last, word0, word1, vocabulary, TILE)
        enough = mass * top_p.to(tl.float64)
        asking = (top_p < 1) & (token >= 0)
        while asking:
            edge = depth(tl.load(scores + token))
            mass, drawn = winner(scores, edge, token - 1, word0, word1, vocabulary, TILE)
            asking = (mass >= enough) & (drawn >= 0)
            token = tl.where(asking, drawn, token)
        if token >= 0:
            tl.store(tokens + row, token.to(tl.int64))
