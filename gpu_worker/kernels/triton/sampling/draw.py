"""Drawing tokens from filtered logits, as `gpu_worker/sampling/sampler.py` defines it, without sorting any.

A row's tokens have an order: greater scores first, of equal ones the lower token. Each filter keeps a
beginning of that order, and a beginning is known by its last token alone, its edge:

    order     ▇ ▇ ▆ ▅ ▅ ▃ ▂ ▂ ▁ ▁ ▁ ▁ · · ·
    min-p     ─────────────────┘                  the edge follows from the best score
    top-k     ───────────┘                        found by bisection: how many are before a score?
    top-p     ? ? ? ? ? ?                         only asked of a token that was drawn

Among the tokens before an edge the greatest sum of score and noise wins. Whether top-p keeps the winner is to
ask how much lies before it; if that is too much, neither it nor what follows it is kept, and it is the new
edge. That ends soon: a token is drawn with the probability that it has, so all but 1 - top_p of the first
winners are kept.

A program takes a row, and reads its scores, 4 bytes each, once in each of these passes:

    1                   the best score is subtracted, the temperature divided by; written
    2 + up to 14        with top-k: each asks for four scores how many are before them
    1, with top-p 2 or more
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
"""How far -inf lies below 0: see `depth`."""
LEAST = tl.constexpr(-2.82)
"""Less than what the best score, 0, has at least once its noise is added: -log(-log(2^-24))."""
PIVOTS = tl.constexpr(4)


@triton.jit
def depth(scores):
    """How many floats lie between a score and 0, the best one: ascending where scores descend."""
    return scores.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def is_before(depths, at, edge, last):
    """Tokens up to the edge: those less deep, and of that very depth those up to token `last`."""
    return (depths < edge) | ((depths == edge) & (at <= last))


@triton.jit
def uniform(at, word0, word1):
    """Numbers in (0, 1), a token each: see `gpu_worker/sampling/noise.py`."""
    bits = (at.to(tl.uint32) * 0x9E3779B1 + word0) ^ word1
    bits ^= bits >> 16
    bits *= 0x21F0AAAD
    bits ^= bits >> 15
    bits *= 0xD35A2D97
    bits ^= bits >> 15
    return ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / (1 << 23))


@triton.jit
def gumbel(chance):
    """-log(-log(1 - chance)). In float64: a GPU's own logarithm is too coarse where noise is large."""
    waited = -tl.log(1.0 - chance.to(tl.float64))
    return -tl.log(waited.to(tl.float32).to(tl.float64)).to(tl.float32)


@triton.jit
def scale(logits, scores, best, temperature, floor, vocabulary, TILE: tl.constexpr):
    """Write the scores; how many of them are no deeper than `floor`."""
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
    """The edge of the best `wanted` of `count` tokens that are no deeper than `floor`, and its last token."""
    above, within = tl.full([], -1, tl.int64), floor.to(tl.int64)
    before = 0  # as many are no deeper than `above`, and `count` no deeper than `within`
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
    if count > wanted:  # equal ones: the lower tokens
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
    """Of the tokens up to the edge: their mass, the best one's being 1, and the one that is drawn, or -1."""
    mass = tl.full([], 0.0, tl.float64)
    top, drawn = tl.full([], LEAST, tl.float32), -1
    for start in range(0, vocabulary, TILE):
        at = start + tl.arange(0, TILE)
        own = tl.load(scores + at, mask=at < vocabulary, other=float("nan"))
        own = tl.where(is_before(depth(own), at, edge, last), own, float("-inf"))
        mass += tl.sum(tl.exp(own).to(tl.float64), axis=0)
        chance = uniform(at, word0, word1)
        # Noise above some t takes a number below 1 - exp(-exp(-t)) < exp(-t): in few tiles one can win.
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
    """`tokens` of the rows that draw are overwritten; logits and scores may be one."""
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
    # Without a best logit nothing could be drawn. (Infinity less itself is no number.)
    if (temperature > 0) & (greatest - greatest == 0):
        own = integers + slot * INTEGER_COLUMNS
        top_k, seed, sequence = tl.load(own + TOP_K), tl.load(own + SEED), tl.load(own + SEQUENCE_INDEX)
        place = tl.load(positions + tl.program_id(0)) + tl.load(own + DROPPED_TOKENS)  # in the whole text
        zero = tl.full([], 0, tl.int32)
        word0, word1, _, _ = tl.philox(seed, place.to(tl.int32), sequence.to(tl.int32), zero, zero)

        edge = tl.full([], LOWEST, tl.int32)
        last = vocabulary
        if min_p > 0:  # exp(score) rounds to no less
            edge = depth(tl.log(min_p.to(tl.float64) * (1 - 2.0**-25)).to(tl.float32))
        count = scale(logits, scores, greatest, temperature, edge, vocabulary, TILE)
        tl.debug_barrier()  # what one thread wrote another reads
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
