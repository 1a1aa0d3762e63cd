"""One row of a page: a position as one head sees it, stored as it is or in one byte a number with a scale.

keys, values     [num_blocks, kv_heads, block_size, head_dim]
scales           [num_blocks, kv_heads, block_size]            what one is worth, if a number is a byte
"""

import triton
import triton.language as tl


@triton.jit
def store_row(numbers, pages, scales, row, dims, DIM: tl.constexpr, SCALED: tl.constexpr):
    """Store float32 [DIM_PADDED], zero beyond DIM, as row `row` (block, head and offset in one)."""
    at = pages + row * DIM + dims
    if SCALED:
        # As `reference_pages.quantized`: a row with a NaN has it as its scale, and tl.max would drop it.
        largest = tl.max(tl.abs(numbers), axis=0)
        largest = tl.where(largest < 1e-30, 0.0, largest)
        inverse = tl.where(largest == 0.0, 0.0, 127.0 / tl.where(largest == 0.0, 1.0, largest))
        sick = tl.sum((numbers != numbers).to(tl.int32), axis=0) > 0
        tl.store(scales + row, tl.where(sick, float("nan"), largest / 127.0))
        whole = numbers * inverse
        whole = tl.where(sick | (whole != whole), 0.0, whole)
        # To the nearest, ties to even: what lies below 1 falls off beside 1.5 * 2^23.
        whole = (whole + 12582912.0) - 12582912.0
        tl.store(at, whole.to(tl.int8), mask=dims < DIM)
    else:
        tl.store(at, numbers.to(pages.dtype.element_ty), mask=dims < DIM)
