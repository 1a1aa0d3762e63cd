"""Rows of pages: a position as one head sees it, stored as it is or in one byte a number.

keys, values     [num_blocks, kv_heads, block_size, head_dim]
scales           [num_blocks, kv_heads, block_size]            of int8: what one is worth in each row
head_scales      [2, kv_heads]                                 of fp8: what one is worth in each head

See `reference_pages.py`. The kernels get pages of fp8 as bytes without sign, which nothing else is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.interface import FP8, LayerCache
from gpu_worker.kernels.triton.formats.fp8 import to_fp8


def pointers(
    cache: LayerCache, packed: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Keys, values, their scales, those of heads, as the kernels take them. `packed`: bytes two by two."""
    keys, values = cache.keys, cache.values
    if packed:
        keys, values = keys.view(torch.int16), values.view(torch.int16)
    elif keys.dtype == FP8:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    return keys, values, cache.key_scales, cache.value_scales, cache.head_scales


@triton.jit
def store_row(
    numbers,
    pages,
    scales,
    worth,
    row,
    dims,
    DIM: tl.constexpr,
    SCALED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
):
    """Store float32 [DIM_PADDED], zero beyond DIM, as row `row` (block, head and offset in one).

    SCALED: with a scale of the row's own. `worth`: otherwise what one is worth, if the pages are fp8.
    """
    at = pages + row * DIM + dims
    if SCALED:
        # As `reference_pages.quantized`: a row with a NaN has it as its scale, and tl.max would drop it.
        largest = tl.max(tl.abs(numbers), axis=0)
        largest = tl.where(largest < 1e-30, 0.0, largest)
        most: tl.constexpr = 448.0 if pages.dtype.element_ty == tl.uint8 else 127.0
        inverse = tl.where(largest == 0.0, 0.0, most / tl.where(largest == 0.0, 1.0, largest))
        sick = tl.sum((numbers != numbers).to(tl.int32), axis=0) > 0
        tl.store(scales + row, tl.where(sick, float("nan"), largest / most))
        whole = numbers * inverse
        if pages.dtype.element_ty == tl.uint8:
            tl.store(at, to_fp8(whole, NATIVE_FP8), mask=dims < DIM)
        else:
            whole = tl.where(sick | (whole != whole), 0.0, whole)
            # To the nearest, ties to even: what lies below 1 falls off beside 1.5 * 2^23.
            whole = (whole + 12582912.0) - 12582912.0
            tl.store(at, whole.to(tl.int8), mask=dims < DIM)
    elif pages.dtype.element_ty == tl.uint8:
        tl.store(at, to_fp8(numbers * tl.div_rn(1.0, worth), NATIVE_FP8), mask=dims < DIM)
    else:
        tl.store(at, numbers.to(pages.dtype.element_ty), mask=dims < DIM)


@triton.jit
def find_rows(row_of_table, at, wanted, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Which rows of the pages the positions `at` [N] of a sequence are, if they are `wanted`."""
    blocks = tl.load(row_of_table + at // BLOCK_SIZE, mask=wanted, other=0)
    return (blocks.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE


@triton.jit
def load_rows(places, wanted, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """[N, PADDED], from `places` [N] on SIZE numbers each; not MASKED: all of them are wanted."""
    dims = tl.arange(0, PADDED)
    if MASKED or SIZE < PADDED:
        result = tl.load(
            places[:, None] + dims[None, :], mask=wanted[:, None] & (dims < SIZE)[None, :], other=0
        )
    else:
        result = tl.load(places[:, None] + dims[None, :])
    return result
