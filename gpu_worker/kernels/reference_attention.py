"""Paged attention in plain PyTorch: gathers keys and values, then `scaled_dot_product_attention`.

Decodes are gathered together and attended in one call, or in a few if they are long; chunks of
prefills one sequence after the other.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_worker.kernels.interface import LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.reference_pages import quantized, widened

GATHERED = 1 << 17
"""Entries that decodes gather at once, at most, if one row alone does not take more. Every row takes
as much as the longest one: this bounds the memory that a step needs beside the pages."""


class ReferenceStep:
    """See `StepAttention`. The entries to gather and the masks are the same in every layer."""

    def __init__(self, step: StepMetadata) -> None:
        self._step = step
        # Which tokens, the entries of their contexts, and which of these each token sees.
        self._decodes: list[tuple[slice, Tensor, Tensor]] = []
        self._chunks: list[tuple[slice, Tensor, Tensor | None]] = []
        self._prepared = False

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        _, kv_heads, block_size, head_dim = cache.keys.shape
        heads = qkv.view(len(qkv), -1, head_dim)
        sizes = [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads]
        query, key, value = torch.split(heads, sizes, dim=1)
        positions = self._step.positions
        cos, sin = rotary.cos[positions, None], rotary.sin[positions, None]
        blocks, offsets = self._step.kv_entries // block_size, self._step.kv_entries % block_size
        places = (blocks, slice(None), offsets)
        if cache.key_scales is not None and cache.value_scales is not None:
            cache.keys[places], cache.key_scales[places] = quantized(_rotate(key.float(), cos, sin))
            cache.values[places], cache.value_scales[places] = quantized(value)
        else:
            cache.keys[places] = _rotate(key, cos, sin)
            cache.values[places] = value
        return _rotate(query, cos, sin)

    def attend(self, query: Tensor, cache: LayerCache) -> Tensor:
        if not self._prepared:
            self._prepare_decodes(cache.keys.shape[2])
            self._prepare_chunks(cache.keys.shape[2])
            self._prepared = True
        out = torch.empty_like(query)
        for tokens, entries, seen in self._decodes:
            out[tokens] = _decode(query[tokens], cache, entries, seen)
        for tokens, entries, mask in self._chunks:
            out[tokens] = _chunk(query[tokens], cache, entries, mask)
        return out.flatten(1)

    def _prepare_decodes(self, block_size: int) -> None:
        step = self._step
        if not step.decodes:
            return
        longest = max(step.context_lengths[: step.decodes])
        offsets = torch.arange(longest, device=step.contexts.device)
        together = max(1, GATHERED // longest)
        for start in range(0, step.decodes, together):
            rows = slice(start, min(start + together, step.decodes))
            contexts = step.contexts[rows, None]
            # Past its own end a row gathers its last entry again: what other sequences left in
            # pages (NaN, say) must not even be multiplied by zero.
            entries = _entries(step.block_tables[rows], offsets.minimum(contexts - 1), block_size)
            self._decodes.append((rows, entries, offsets < contexts))

    def _prepare_chunks(self, block_size: int) -> None:
        step = self._step
        start = step.decodes
        for row in range(step.decodes, len(step.query_lengths)):
            count, context = step.query_lengths[row], step.context_lengths[row]
            offsets = torch.arange(context, device=step.contexts.device)
            entries = _entries(step.block_tables[row : row + 1], offsets[None], block_size)[0]
            mask = None if count == context else offsets[None, :] <= offsets[context - count :, None]
            self._chunks.append((slice(start, start + count), entries, mask))
            start += count


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate states [tokens, heads, head_dim] by cosines and sines [tokens, 1, head_dim / 2], in float32."""
    first, second = states.chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(states.dtype)


def _decode(query: Tensor, cache: LayerCache, entries: Tensor, seen: Tensor) -> Tensor:
    """One token of each sequence: query [rows, heads, head_dim]; entries and seen [rows, longest]."""
    rows, heads, head_dim = query.shape
    kv_heads = cache.keys.shape[1]
    keys, values = _gathered(cache, entries, query.dtype)
    # The heads that share a key stand in for query positions: keys are read once for all of them.
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    out = scaled_dot_product_attention(
        grouped, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=seen[:, None, None, :]
    )
    return out.reshape(rows, heads, head_dim)


def _chunk(query: Tensor, cache: LayerCache, entries: Tensor, mask: Tensor | None) -> Tensor:
    """One sequence: query [tokens, heads, head_dim]; mask [tokens, context], None = plainly causal."""
    keys, values = (states.transpose(0, 1)[None] for states in _gathered(cache, entries, query.dtype))
    out = scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _gathered(cache: LayerCache, entries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of flat entries [...]; [..., kv_heads, head_dim] each."""
    block_size = cache.keys.shape[2]
    places = (entries // block_size, slice(None), entries % block_size)
    keys, values = cache.keys[places], cache.values[places]
    if cache.key_scales is not None and cache.value_scales is not None:
        keys = widened(keys, cache.key_scales[places], dtype)
        values = widened(values, cache.value_scales[places], dtype)
    return keys, values


def _entries(block_tables: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Flat entries of positions [rows, n] through block tables [rows, blocks]; int64 [rows, n]."""
    blocks = block_tables.gather(1, (positions // block_size).long())
    return blocks.long() * block_size + positions % block_size
