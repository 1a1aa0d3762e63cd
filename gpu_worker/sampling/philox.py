"""Philox4x32-10: a random generator without state (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3").

Ten rounds turn a counter of four words and a key of two into four random words. The same counter
and key give the same words in any batch, on any device. Words of 32 bits are kept in int64.
"""

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
