"""Gumbel noise: argmax(logits + noise) is a draw from softmax(logits) (Gumbel 1954; Maddison et al. 2014).

Every token has noise of its own, so a draw changes only where the best two scores are as close as two
ways of computing the logits differ. (The inverse of the cumulative distribution moves with every
logit: there, rounding changes one draw in some thousands, and a resumed request would show it.)

A row's words come from Philox4x32-10, a random generator without state (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3"). Ten rounds turn a counter of four words and a key of two into four words. The
same counter and key give the same words in any batch, on any device. Words of 32 bits are kept in int64.
A hash of 32 bits spreads them over the vocabulary, at a tenth of what Philox would cost for every token.
"""

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random words for each counter and key; all int64 tensors of one shape, with values below 2^32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def keys(seeds: Tensor, positions: Tensor, sequences: Tensor) -> tuple[Tensor, ...]:
    """Four words for each seed (64 bits), position and sequence index; all int64 [rows]."""
    zero = positions.new_zeros(()).expand_as(positions)
    return philox((positions, sequences, zero, zero), (seeds & _MASK, (seeds >> 32) & _MASK))


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word of the product. It wraps around in int64, which leaves its 64 bits right."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK


def gumbel(words: tuple[Tensor, ...], vocabulary: int) -> Tensor:
    """Noise float32 [rows, vocabulary]; `words`: random words in int64 [rows], of which two are used."""
    tokens = torch.arange(vocabulary, dtype=torch.int32, device=words[0].device)
    # Odd multiplier: neighbouring tokens begin far apart.
    bits = tokens * -1640531535 + words[0].int()[:, None]
    bits ^= words[1].int()[:, None]
    _mix(bits)
    # 23 bits, and the middle of each step: a float32 in (0, 1) that never rounds to 0 or 1.
    uniform = (((bits >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23
    # -log(exponential): small exponentials, which win, come from small numbers, where floats are dense.
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mix(bits: Tensor) -> None:
    """A bijection of int32, in place, in which every bit depends on all (Wellons, "Hash Prospector")."""
    bits ^= (bits >> 16) & 0xFFFF
    bits *= 0x21F0AAAD
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= -749064809  # 0xD35A2D97
    bits ^= (bits >> 15) & 0x1FFFF
