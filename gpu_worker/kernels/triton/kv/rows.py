"""Loads and stores rows of the KV pages, whatever their format.

keys, values     [num_blocks, kv_heads, block_size, size]

A row is the last dimension: the key, or the value, of one token in one KV head.
"""

import triton
import triton.language as tl


@triton.jit
def find_rows(row_of_table, at, wanted, kv_head, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Which rows of the pages the positions `at` [N] of a sequence are, if they are `wanted`."""
    blocks = tl.load(row_of_table + at // BLOCK_SIZE, mask=wanted, other=0)
    return (blocks.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE


@triton.jit
def load_rows(places, wanted, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Words [N, PADDED], SIZE of them from each of `places` [N] on; not MASKED: all of them are wanted."""
    dims = tl.arange(0, PADDED)
    if MASKED or SIZE < PADDED:
        result = tl.load(
            places[:, None] + dims[None, :], mask=wanted[:, None] & (dims < SIZE)[None, :], other=0
        )
    else:
        result = tl.load(places[:, None] + dims[None, :])
    return result
