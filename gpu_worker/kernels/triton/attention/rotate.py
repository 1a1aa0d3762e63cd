"""Rotary embedding and the way into the pages, in one pass over what the projection gave.

A program takes one token and one key head: the queries that share it, the key and the value.

    qkv      │ q0 q1 q2 q3 │ q4 q5 q6 q7 │ k0 k1 │ v0 v1 │    8 heads, 2 kv heads, one token
                             └────┬────┘        │       │
    program (token, 1)            └──▶ query    └──▶ pages [block, 1, offset]

Read: a token's queries, keys and values once. Written: the same number of bytes, or fewer for keys and values
where the pages' numbers are smaller.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.triton.kv.format import format_of, pointers


@triton.jit(do_not_specialize_on_alignment=["positions"])
def rotate_rows(
    qkv,
    positions,
    entries,
    cos,
    sin,
    query,
    keys,
    values,
    key_scales,
    value_scales,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Grid: tokens, key heads.

    qkv [tokens, heads + 2 * KV_HEADS, DIM]; positions int64 [tokens], the line of each in cos and sin, both
    float32 [positions, TURNED]; entries int64 [tokens], -1: key and value go nowhere; query [tokens, heads,
    DIM]; keys, values and their scales as `pointers` has them. GROUP: query heads of a key head.
    """
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    heads: tl.constexpr = KV_HEADS * GROUP
    dims = tl.arange(0, DIM_PADDED)
    inside = dims < DIM
    # Dimension i is turned with i + TURNED; those from 2 * TURNED on stay as they are.
    turned = dims < 2 * TURNED
    partners = tl.where(dims < TURNED, dims + TURNED, tl.where(turned, dims - TURNED, dims))
    angles = tl.load(positions + token) * TURNED + dims % TURNED
    cosines = tl.load(cos + angles, mask=turned, other=1.0)
    sines = tl.load(sin + angles, mask=turned, other=0.0)
    sines = tl.where(dims < TURNED, -sines, sines)
    own = qkv + token * (heads + 2 * KV_HEADS) * DIM

    members = tl.arange(0, GROUP_PADDED)[:, None]
    at = (kv_head * GROUP + members) * DIM
    real = (members < GROUP) & inside[None, :]
    straight = tl.load(own + at + dims[None, :], mask=real, other=0.0).to(tl.float32)
    crossed = tl.load(own + at + partners[None, :], mask=real, other=0.0).to(tl.float32)
    rotated = straight * cosines[None, :] + crossed * sines[None, :]
    tl.store(query + token * heads * DIM + at + dims[None, :], rotated.to(query.dtype.element_ty), mask=real)

    entry = tl.load(entries + token)
    if entry >= 0:
        row = (entry // BLOCK_SIZE * KV_HEADS + kv_head) * BLOCK_SIZE + entry % BLOCK_SIZE
        key = own + (heads + kv_head) * DIM
        own_key = tl.load(key + dims, mask=inside, other=0.0).to(tl.float32)
        partner_key = tl.load(key + partners, mask=inside, other=0.0).to(tl.float32)
        rotated_key = own_key * cosines + partner_key * sines
        STORE(rotated_key, keys, key_scales, row, kv_head, dims, DIM)
        value = tl.load(own + (heads + KV_HEADS + kv_head) * DIM + dims, mask=inside, other=0.0)
        STORE(value.to(tl.float32), values, value_scales, row, kv_head, dims, DIM)


def rotate_and_write(qkv: Tensor, rotary: Rotary, cache: LayerCache, step: StepMetadata) -> Tensor:
    """See `StepAttention.rotate_and_write`. Tokens whose entry is negative write nothing."""
    kv_heads, dim, kv = cache.shape.heads, cache.shape.key_size, format_of(cache)
    heads = qkv.shape[1] // dim - 2 * kv_heads
    qkv = qkv.contiguous()
    query = torch.empty((len(qkv), heads, dim), dtype=qkv.dtype, device=qkv.device)
    rotate_rows[(len(qkv), kv_heads)](
        qkv,
        step.lines,
        step.kv_entries,
        rotary.cos,
        rotary.sin,
        query,
        *pointers(cache, kv.stored),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PADDED=triton.next_power_of_2(heads // kv_heads),
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
        TURNED=rotary.cos.shape[1],
        BLOCK_SIZE=cache.block_size,
        STORE=kv.store_row,
        num_warps=2,
    )
    return query
