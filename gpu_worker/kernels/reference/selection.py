"""Sparse attention (DeepSeek-V3.2, section 2.1), on every device: each token attends to a selection of its
context.

Index scores and the selection are computed in plain PyTorch. Attention over the selection is the back end's
own: pages that lie row by row are also pages of one token each, so a selection is a block table.

    selected positions     token a: 0 3 4          token b: 1 2 3
    rows of a new step     │ a │ b │               each a decode, whose context is its selection
    their block tables     entries of 0 3 4        entries of 1 2 3
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.kernels.attention import (
    FULL_ATTENTION,
    AttentionSpec,
    LayerCache,
    StepAttention,
    StepMetadata,
)

PIECE = 1 << 24
"""Products of index queries and keys that are computed at once, at most, if one token alone does not have
more. They take 4 bytes each."""


class SelectingStep(ABC):
    """The part of `StepAttention` that selects. The steps of all back ends inherit it."""

    def __init__(self, step: StepMetadata, begin: Callable[[StepMetadata], StepAttention]) -> None:
        """`begin`: see `Kernels`."""
        self._step, self._begin = step, begin
        self.positions = step.positions
        self._selecting: StepMetadata | None = None
        self._selected: StepAttention | None = None

    @abstractmethod
    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        """See `StepAttention.attend`."""

    def select(self, query: Tensor, weights: Tensor, cache: LayerCache, top_k: int) -> None:
        """See `StepAttention.select`."""
        if max(self._step.context_lengths) <= top_k:
            return  # everything is selected
        if self._selecting is None:
            self._selecting = _one_row_each(self._step, top_k)
        entries = [
            of_row[selected(query[tokens], weights[tokens], keys, self.positions[tokens], top_k)]
            for tokens, of_row, keys in _rows(self._step, cache, query)
        ]
        self._selected = self._begin(replace(self._selecting, block_tables=torch.cat(entries).int()))

    def attend_selected(self, query: Tensor, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """See `StepAttention.attend_selected`."""
        if self._selected is None:
            return self.attend(query, cache, spec)
        return self._selected.attend(query, by_token(cache), spec)


def selected(query: Tensor, weights: Tensor, keys: Tensor, positions: Tensor, top_k: int) -> Tensor:
    """Positions that each of a row's tokens selects, int64 [tokens, top_k], in ascending order. A token that
    sees fewer than `top_k` has the row's last position in the places that are left.

    `query`: [tokens, heads, head_dim]. `weights`: float32 [tokens, heads]. `keys`: [context, head_dim].
    `positions`: int64 [tokens].
    """
    last = len(keys) - 1
    products = (query.float() @ keys.float().T).relu_()
    scores = torch.bmm(weights[:, None], products)[:, 0]
    ahead = torch.arange(len(keys), device=keys.device) > positions[:, None]
    found = scores.masked_fill_(ahead, -torch.inf).topk(min(top_k, len(keys))).indices
    found = found.where(found <= positions[:, None], last).sort().values
    return pad(found, (0, top_k - found.shape[1]), value=last)


def by_token(cache: LayerCache) -> LayerCache:
    """The same shared pages as blocks of one token, whose numbers are the entries."""
    keys, scales = cache.keys.flatten(0, 2)[:, None, None], cache.key_scales
    if scales is not None and scales.dim() > 1:  # one for each row, not one for each head
        scales = scales.flatten()[:, None, None]
    return replace(cache, keys=keys, values=keys, key_scales=scales, value_scales=scales)


def _one_row_each(step: StepMetadata, top_k: int) -> StepMetadata:
    """The step with each token as a row of its own, which attends to the tokens selected for it: `top_k` at
    most. Block tables are left as they are."""
    rows = zip(step.query_lengths, step.context_lengths, strict=True)
    visible = [seen for count, context in rows for seen in range(context - count + 1, context + 1)]
    return replace(
        step,
        decodes=len(visible),
        query_lengths=(1,) * len(visible),
        context_lengths=tuple(min(top_k, seen) for seen in visible),
        query_starts=torch.arange(len(visible) + 1, dtype=torch.int32, device=step.contexts.device),
        contexts=(step.positions + 1).clamp(max=top_k).int(),
    )


def _rows(step: StepMetadata, cache: LayerCache, query: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Of each row, whose tokens may come in pieces: tokens, entries int64 [context], and index keys [context,
    head_dim]."""
    start, size = 0, cache.block_size
    within = torch.arange(size, device=query.device)
    lengths = zip(step.query_lengths, step.context_lengths, strict=True)
    for row, (count, context) in enumerate(lengths):
        blocks = step.block_tables[row, : -(-context // size)].long()
        entries = (blocks[:, None] * size + within).flatten()[:context]
        places = entries // size, slice(None), entries % size
        keys = cache.format.load(cache, places, query.dtype)[0][:, 0]
        together = max(1, PIECE // (query.shape[1] * context))
        for first in range(0, count, together):
            yield slice(start + first, start + min(first + together, count)), entries, keys
        start += count
