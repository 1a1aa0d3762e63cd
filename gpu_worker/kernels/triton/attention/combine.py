"""The second pass of attention: the results for several stretches of a context become one.

    partials   float32 [splits, tokens, heads, head_dim]    each stretch's weighted mean of values
    logsums    float32 [splits, tokens, heads]              log2 of its sum of weights; -inf: it was empty

A program takes one head of one token. Read: splits * (head_dim + 1) * 4 bytes, of empty stretches 4.
"""

import triton
import triton.language as tl
from torch import Tensor

MOST_TOGETHER = 16
"""Stretches that a program reads at a time: as many as its registers hold."""


@triton.jit(do_not_specialize=["rows_in_step"])
def combine(
    partials,
    logsums,
    out,
    rows_in_step,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Grid: heads of all tokens.

    partials and logsums as above, with `rows_in_step` = tokens * heads; out [tokens, heads, DIM]. SPLITS:
    number of stretches. TOGETHER: number of stretches that are read at a time. Both are powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIM_PADDED)
    sums = tl.load(logsums + tl.arange(0, SPLITS).to(tl.int64) * rows_in_step + row)
    top = tl.max(sums, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(sums - top), axis=0)
    mixed = tl.zeros([DIM_PADDED], tl.float32)
    for first in range(0, SPLITS, TOGETHER):
        at = (first + tl.arange(0, TOGETHER)).to(tl.int64) * rows_in_step + row
        own = tl.load(logsums + at)
        held = (own != float("-inf"))[:, None] & (dims < DIM)[None, :]
        parts = tl.load(partials + at[:, None] * DIM + dims[None, :], mask=held, other=0.0)
        mixed += tl.sum(parts * tl.exp2(own - top)[:, None], axis=0)
    result = mixed / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DIM + dims, result.to(out.dtype.element_ty), mask=dims < DIM)


def combined(partials: Tensor, logsums: Tensor, out: Tensor) -> None:
    """Write the results to the first rows of `out`, [tokens, heads, head_dim]."""
    splits, rows, dim = partials.shape
    padded = triton.next_power_of_2(max(16, dim))
    combine[(rows,)](
        partials,
        logsums,
        out,
        rows,
        DIM=dim,
        DIM_PADDED=padded,
        SPLITS=splits,
        TOGETHER=min(splits, MOST_TOGETHER),
        num_warps=max(1, padded // 128),  # so that each sum over stretches stays within a thread
    )
