"""Pages of any format with drawn contents, for measurements."""

import torch

from gpu_worker.kernels.attention import KvFormat, LayerCache
from gpu_worker.kernels.kv_sizes import PageShape

AT_ONCE = 1 << 22
"""Numbers that are drawn at a time, so that they take little memory beside the pages."""

SCALE = 1 / 64
"""Of heads, where each has one: drawn numbers are far from the largest, and far from nothing."""


def make_pages(
    kv: KvFormat,
    shape: PageShape,
    blocks: int,
    block_size: int,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> LayerCache:
    """The pages of a layer, with normally distributed keys and values."""
    cache = _empty(kv, shape, blocks, block_size, device)
    if kv.largest is not None:
        kv.set_scales(cache, torch.full((2, shape.heads), SCALE, device=device))
    fill(cache, generator)
    return cache


def fill(cache: LayerCache, generator: torch.Generator | None = None) -> None:
    """Put normally distributed keys and values into the pages."""
    shape, device = cache.shape, cache.keys.device
    offsets = torch.arange(cache.block_size, device=device)
    at_once = max(1, AT_ONCE // (shape.heads * cache.block_size * shape.key_size))
    for blocks in torch.split(torch.arange(len(cache.keys), device=device)[:, None], at_once):
        rows = [
            torch.empty((len(blocks), cache.block_size, shape.heads, size), device=device).normal_(
                generator=generator
            )
            for size in shape.rows
        ]
        cache.format.store(cache, (blocks, slice(None), offsets), *rows)


def copied(cache: LayerCache) -> LayerCache:
    """The same in pages of their own."""
    other = _empty(cache.format, cache.shape, len(cache.keys), cache.block_size, cache.keys.device)
    for to, own in zip(other.tensors(), cache.tensors(), strict=True):
        to.copy_(own)
    if cache.format.largest is not None and cache.key_scales is not None and cache.value_scales is not None:
        cache.format.set_scales(other, torch.stack((cache.key_scales, cache.value_scales)))
    return other


def _empty(kv: KvFormat, shape: PageShape, blocks: int, block_size: int, device: torch.device) -> LayerCache:
    return kv.allocate(
        shape, blocks, block_size, lambda sizes, dtype: torch.empty(sizes, dtype=dtype, device=device)
    )
