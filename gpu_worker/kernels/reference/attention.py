"""Paged attention in plain PyTorch: gathers keys and values, then `scaled_dot_product_attention`.

Decodes are gathered together and attended in one call, or in a few if they are long; chunks of
prefills one sequence after the other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec, LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.reference.latent import rotated, write_latent
from gpu_worker.kernels.reference.recurrence import RecurrentStep
from gpu_worker.kernels.reference.selection import SelectingStep

GATHERED = 1 << 17
"""Entries that decodes gather at once, at most, if one row alone does not take more. Every row takes
as much as the longest one: this bounds the memory that a step needs beside the pages."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Tokens that are attended together, the entries that are gathered for them, and which each sees."""

    tokens: slice
    entries: Tensor
    """int64 [entries] for a chunk, [rows, entries] for decodes."""
    places: Tensor
    """int64, as `entries`: positions of what is gathered."""
    seen: Tensor | None
    """bool [tokens, entries]; None: the tokens are all of their context, and see it plainly causally."""


class ReferenceStep(SelectingStep, RecurrentStep):
    """See `StepAttention`. Entries and masks are the same in every layer of the same spec."""

    def __init__(self, step: StepMetadata) -> None:
        super().__init__(step, ReferenceStep)
        self._prepared: dict[AttentionSpec, tuple[list[Gathering], list[Gathering]]] = {}

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        kv_heads, block_size = cache.shape.heads, cache.block_size
        heads = qkv.view(len(qkv), -1, cache.shape.key_size)
        sizes = [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads]
        query, key, value = torch.split(heads, sizes, dim=1)
        lines = self._step.lines
        cos, sin = rotary.cos[lines, None], rotary.sin[lines, None]
        blocks, offsets = self._step.kv_entries // block_size, self._step.kv_entries % block_size
        places = (blocks, slice(None), offsets)
        # Keys are rounded once, from float32 to what the format keeps.
        cache.format.store(cache, places, rotated(key.float(), cos, sin), value)
        return rotated(query, cos, sin)

    def write_latent(self, query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache) -> None:
        write_latent(query, latent, rotary, cache, self._step)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        if spec not in self._prepared:
            block_size = cache.block_size
            self._prepared[spec] = (self._decodes(spec, block_size), self._chunks(spec, block_size))
        decodes, chunks = self._prepared[spec]
        out = query.new_empty((*query.shape[:2], cache.shape.value_size))
        for some in decodes:
            biases = self._biases(slopes, some)
            out[some.tokens] = _decode(query[some.tokens], cache, some, spec, biases, sink_logits)
        for some in chunks:
            biases = self._biases(slopes, some)
            out[some.tokens] = _chunk(query[some.tokens], cache, some, spec, biases, sink_logits)
        return out.flatten(1)

    def _biases(self, slopes: Tensor | None, some: Gathering) -> Tensor | None:
        """What is added to scores, float32 [heads, tokens, entries]; -inf where a token would look ahead."""
        if slopes is None:
            return None
        ahead = some.places - self.positions[some.tokens, None]
        return (slopes[:, None, None] * ahead).masked_fill(ahead > 0, -torch.inf)

    def _decodes(self, spec: AttentionSpec, block_size: int) -> list[Gathering]:
        step, gatherings = self._step, list[Gathering]()
        if not step.decodes:
            return gatherings
        most = max(step.context_lengths[: step.decodes])
        if spec.window:
            most = min(most, spec.sinks + spec.window)
        elif spec.chunk:
            most = min(most, spec.chunk)
        places = torch.arange(most, device=step.contexts.device)
        together = max(1, GATHERED // most)
        for start in range(0, step.decodes, together):
            rows = slice(start, min(start + together, step.decodes))
            contexts = step.contexts[rows, None]
            # What is gathered of a row: its sinks, then its window.
            begin = torch.zeros_like(contexts)
            if spec.window:
                begin = (contexts - spec.window).clamp(min=0)
            elif spec.chunk:
                begin = (contexts - 1) // spec.chunk * spec.chunk
            sinks = begin.clamp(max=spec.sinks)
            offsets = torch.where(places < sinks, places, places - sinks + begin)
            # Past its own end a row gathers its last entry again: what other sequences left in
            # pages (NaN, say) must not even be multiplied by zero.
            entries = _entries(step.block_tables[rows], offsets.minimum(contexts - 1), block_size)
            gatherings.append(Gathering(rows, entries, offsets, offsets < contexts))
        return gatherings

    def _chunks(self, spec: AttentionSpec, block_size: int) -> list[Gathering]:
        step, gatherings = self._step, list[Gathering]()
        start = step.decodes
        for row in range(step.decodes, len(step.query_lengths)):
            count, context = step.query_lengths[row], step.context_lengths[row]
            offsets = torch.arange(context, device=step.contexts.device)
            queries = offsets[context - count :, None]
            if spec.window:
                begin = max(0, context - count + 1 - spec.window)  # of the first token's window
                offsets = offsets[(offsets >= begin) | (offsets < spec.sinks)]
            elif spec.chunk:
                offsets = offsets[(context - count) // spec.chunk * spec.chunk :]
            entries = _entries(step.block_tables[row : row + 1], offsets[None], block_size)[0]
            seen = None  # plainly causal
            if count < context or spec != FULL_ATTENTION:
                seen = offsets <= queries
                if spec.window:
                    seen &= (offsets > queries - spec.window) | (offsets < spec.sinks)
                elif spec.chunk:
                    seen &= offsets >= queries // spec.chunk * spec.chunk
            gatherings.append(Gathering(slice(start, start + count), entries, offsets, seen))
            start += count
        return gatherings


def _decode(
    query: Tensor,
    cache: LayerCache,
    some: Gathering,
    spec: AttentionSpec,
    biases: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """One token of each sequence: query [rows, heads, head_dim]; entries and seen [rows, longest]."""
    rows, heads, head_dim = query.shape
    kv_heads = cache.shape.heads
    keys, values = (states.transpose(1, 2) for states in _gathered(cache, some.entries, query.dtype))
    assert some.seen is not None
    # The heads that share a key stand in for query positions: keys are read once for all of them.
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    if biases is not None:
        biases = biases.transpose(0, 1).view(*grouped.shape[:3], -1)
    if sinks is not None:
        sinks = sinks.view(1, *grouped.shape[1:3], 1)
    out = _attended(grouped, keys, values, some.seen[:, None, None, :], spec, biases, sinks)
    return out.reshape(rows, heads, -1)


def _chunk(
    query: Tensor,
    cache: LayerCache,
    some: Gathering,
    spec: AttentionSpec,
    biases: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """One sequence: query [tokens, heads, head_dim]; seen [tokens, entries], None = plainly causal."""
    keys, values = (states.transpose(0, 1)[None] for states in _gathered(cache, some.entries, query.dtype))
    if sinks is not None:
        sinks = sinks.view(1, -1, 1, 1)
    out = _attended(query.transpose(0, 1)[None], keys, values, some.seen, spec, biases, sinks)
    return out[0].transpose(0, 1)


def _attended(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor | None,
    spec: AttentionSpec,
    biases: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """[n, heads, queries, head_dim] over [n, kv_heads, entries, head_dim]; `seen`: None = plainly causal.

    `sinks`: float32 [1, heads, queries or 1, 1], a score beside those of the entries.
    """
    if not spec.softcap and biases is None and sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=seen, is_causal=seen is None, scale=spec.scale, enable_gqa=True
        )
    group = query.shape[1] // keys.shape[1]
    keys, values = (states.repeat_interleave(group, dim=1) for states in (keys, values))
    scores = query.float() @ keys.float().transpose(2, 3) * (spec.scale or query.shape[3] ** -0.5)
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    if biases is not None:
        scores = scores + biases
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    elif sinks is not None:  # otherwise the biases hide what lies ahead
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:3], 1)), dim=-1)
    return scores.softmax(-1)[..., : keys.shape[2]].to(query.dtype) @ values


def _gathered(cache: LayerCache, entries: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of flat entries [...]; [..., kv_heads, head_dim] each, or value_size."""
    places = entries // cache.block_size, slice(None), entries % cache.block_size
    return cache.format.load(cache, places, dtype)


def _entries(block_tables: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Flat entries of positions [rows, n] through block tables [rows, blocks]; int64 [rows, n]."""
    blocks = block_tables.gather(1, (positions // block_size).long())
    return blocks.long() * block_size + positions % block_size
