"""Tokens of a row that a program of `draw.py` holds in registers: their scores, noise and order.

own        float32    scores: logits less the best, divided by the temperature
at         int32      the tokens' numbers, in the shape of `own`
kept       bool       which of them filters keep
edge, last            the depth of the last kept score, and the last token of that depth that is kept
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(0x7F800000)
"""The `depth` of -inf."""
MARGIN = tl.constexpr(1e-3)
"""More than twice the error of `rough_gumbel`."""


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
def rough_gumbel(chance):
    """The same in float32, to some 2e-5."""
    series = chance * (1.0 + chance * (0.5 + chance * (1.0 / 3.0)))  # where the logarithm is too coarse
    return -tl.log(tl.where(chance < 0.01, series, -tl.log(1.0 - chance)))


@triton.jit
def score_of(logits, at, inside, best, temperature):
    """Scores of tokens, by their numbers `at`. A number that is not `inside` the vocabulary has -inf."""
    own = tl.load(logits + at, mask=inside, other=float("-inf"))
    return tl.div_rn(own - best, temperature)


@triton.jit
def drawn_of(own, kept, at, word0, word1, vocabulary):
    """The token of those `kept` with the greatest sum of score and noise, and roughly that sum. If there is
    none: -1 and -inf."""
    chance = uniform(at, word0, word1)
    rough = tl.where(kept, own + rough_gumbel(chance), float("-inf"))
    peak = tl.max(rough)
    close = kept & (rough >= peak - MARGIN)
    token = tl.min(tl.where(close, at, vocabulary))
    if tl.sum(close.to(tl.int32)) > 1:  # the order of a few is left to be found, exactly
        most, other = tl.full([], float("-inf"), tl.float32), token
        while other < vocabulary:
            noisy = tl.max(tl.where(at == other, own, float("-inf"))) + gumbel(uniform(other, word0, word1))
            token = tl.where(noisy > most, other, token)
            most = tl.maximum(noisy, most)
            other = tl.min(tl.where(close & (at > other), at, vocabulary))
    return tl.where(token < vocabulary, token, -1), peak


@triton.jit
def mass_of(own, kept):
    """Sum of exp(score) of the tokens that are `kept`. The best token has mass 1."""
    return tl.sum(tl.where(kept, tl.exp(own), 0.0).to(tl.float64))


@triton.jit
def count_of(kept):
    return tl.sum(kept.to(tl.int32))


@triton.jit
def edge_of_first(depths, at, wanted):
    """The edge after the first `wanted` of tokens that are held in registers: its depth, and the last token
    of that depth before it. No fewer are no deeper than LOWEST."""
    above, edge = tl.full([], -1, tl.int32), tl.full([], LOWEST, tl.int32)
    while edge - above > 1:
        middle = above + (edge - above) // 2
        enough = count_of(depths <= middle) >= wanted
        edge, above = tl.where(enough, middle, edge), tl.where(enough, above, middle)
    missing = wanted - count_of(depths < edge)
    before, last = tl.full([], -1, tl.int32), tl.max(at)
    if count_of(depths == edge) > missing:  # of equal ones keep the lower
        while last - before > 1:
            middle = before + (last - before) // 2
            enough = count_of((depths == edge) & (at <= middle)) >= missing
            last, before = tl.where(enough, middle, last), tl.where(enough, before, middle)
    return edge, last
