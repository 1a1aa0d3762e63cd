"""Gumbel noise: argmax(logits + noise) is a draw from softmax(logits) (Gumbel 1954; Maddison et al. 2014).

Every token has noise of its own, so a draw changes only where the best two scores are as close as two
ways of computing the logits differ. (The inverse of the cumulative distribution moves with every
logit: there, rounding changes one draw in some thousands, and a resumed request would show it.)

A row's words come from Philox; a hash of 32 bits spreads them over the vocabulary at a tenth of what
Philox would cost for every token.
"""

import torch
from torch import Tensor


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
