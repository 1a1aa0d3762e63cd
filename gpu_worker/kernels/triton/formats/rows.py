"""Rows of numbers of one byte, each with a scale of its own: of int8, and of fp8 as bytes without sign.

As `reference/rows.py` has them.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.formats.fp8 import to_fp8


@triton.jit
def store_scaled(numbers, rows, scales, row, dims, SIZE: tl.constexpr, NATIVE_FP8: tl.constexpr):
    """Store float32 [PADDED], zero beyond SIZE, as row `row` of `rows`, and its scale beside it."""
    at = rows + row * SIZE + dims
    # As `quantized`: a row with a NaN has it as its scale, and tl.max would drop it.
    largest = tl.max(tl.abs(numbers), axis=0)
    largest = tl.where(largest < 1e-30, 0.0, largest)
    most: tl.constexpr = 448.0 if rows.dtype.element_ty == tl.uint8 else 127.0
    inverse = tl.where(largest == 0.0, 0.0, most / tl.where(largest == 0.0, 1.0, largest))
    sick = tl.sum((numbers != numbers).to(tl.int32), axis=0) > 0
    tl.store(scales + row, tl.where(sick, float("nan"), largest / most))
    whole = numbers * inverse
    if rows.dtype.element_ty == tl.uint8:
        tl.store(at, to_fp8(whole, NATIVE_FP8), mask=dims < SIZE)
    else:
        whole = tl.where(sick | (whole != whole), 0.0, whole)
        # To the nearest, ties to even: what lies below 1 falls off beside 1.5 * 2^23.
        whole = (whole + 12582912.0) - 12582912.0
        tl.store(at, whole.to(tl.int8), mask=dims < SIZE)
