"""Attention in which the tokens of an image see each other, those behind them too, as in Gemma.

    image      ▣ ▣ ▣ ▣           each of its tokens sees all of them, and what is before the image
    rows       ▣      ▣ ▣ ▣ ▣    so each is a row of its own, whose context ends where the image does
               1 of   1 of ...

Keys and values of all of an image's tokens are in the pages before a layer attends. So a token of an image is
computed like an answer's newest token, whose context happens to go on behind it: back ends need not know. A
window begins as far before the token as ever, which makes it longer by what is behind the token.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.attention import (
    FULL_ATTENTION,
    AttentionSpec,
    LayerCache,
    StepAttention,
    StepMetadata,
)
from gpu_worker.machine.transfer import indices
from gpu_worker.models.sight import Seen

Begin = Callable[[StepMetadata], StepAttention]


def seen_together(begin: Begin, seen: Seen, in_windows: bool) -> Begin:
    """As `begin`, of a step with images whose tokens see each other. `in_windows`: in layers with windows
    alone."""
    return lambda step: cast(StepAttention, _Together(begin, step, seen, in_windows))


class _Together:
    """A step. See `StepAttention`."""

    def __init__(self, begin: Begin, step: StepMetadata, seen: Seen, in_windows: bool) -> None:
        self._begin, self._metadata, self._in_windows = begin, step, in_windows
        self._step, self._tokens = begin(step), seen.tokens
        assert seen.ahead is not None
        self._ahead = seen.ahead.counts
        self._contexts = seen.ahead.positions + self._ahead + 1
        """Position behind the image of each token."""
        ends = np.cumsum(step.query_lengths)
        self._rows = np.searchsorted(ends, seen.ahead.tokens, side="right")
        """The row of each token."""
        self._prepared: dict[bool, list[tuple[Tensor, StepAttention, int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        out = self._step.attend(query, cache, spec, slopes, sink_logits)
        if self._in_windows and not spec.window:
            return out
        for tokens, step, ahead in self._groups(spec.window):
            own = replace(spec, window=spec.window + ahead) if spec.window else spec
            out[tokens] = step.attend(query[tokens], cache, own, slopes, sink_logits)
        return out

    def _groups(self, window: int) -> list[tuple[Tensor, StepAttention, int]]:
        """Tokens of images, a step in which each is a row of its own, and by how much its window is longer.

        Where no window ends within a context, all tokens are in one group.
        """
        apart = 0 < window < int(self._contexts.max())
        if apart not in self._prepared:
            self._prepared[apart] = list(self._made(apart))
        return self._prepared[apart]

    def _made(self, apart: bool) -> Iterator[tuple[Tensor, StepAttention, int]]:
        rows, contexts, ahead = self._rows, self._contexts, self._ahead
        groups = [np.flatnonzero(ahead == each) for each in np.unique(ahead)] if apart else [...]
        device = self._tokens.device
        for group in groups:
            places = np.arange(len(ahead))[group]
            count = len(places)
            sent = indices(np.stack((places, rows[places], contexts[places])), device)
            tokens = self._tokens[sent[0]]
            step = StepMetadata(
                decodes=count,
                query_lengths=(1,) * count,
                context_lengths=tuple(contexts[places].tolist()),
                query_starts=torch.arange(count + 1, dtype=torch.int32, device=device),
                contexts=sent[2].int(),
                block_tables=self._metadata.block_tables[sent[1]],
                positions=self._metadata.positions[tokens],
                kv_entries=self._metadata.kv_entries[tokens],
            )
            yield tokens, self._begin(step), int(ahead[places[0]]) if apart else 0
