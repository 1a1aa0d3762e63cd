"""The second pass of attention: what several stretches of a context gave becomes one result.

    partials   float32 [splits, tokens, heads, head_dim]    each stretch's weighted mean of values
    logsums    float32 [splits, tokens, heads]              log2 of its sum of weights; -inf: it was empty

A program takes one head of one token. Read: splits * (head_dim + 1) * 4 bytes, of empty stretches 4.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows_in_step"])
def combine(
    partials,
    logsums,
    out,
    rows_in_step,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, DIM_PADDED)
    at = tl.arange(0, SPLITS).to(tl.int64) * rows_in_step + row
    sums = tl.load(logsums + at)
    full = sums != float("-inf")
    top = tl.max(tl.where(full, sums, float("-inf")), axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(sums - top)
    held = full[:, None] & (dims < DIM)[None, :]
    parts = tl.load(partials + at[:, None] * DIM + dims[None, :], mask=held, other=0.0)
    total = tl.sum(weights, axis=0)
    result = tl.sum(parts * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * DIM + dims, result.to(out.dtype.element_ty), mask=dims < DIM)
