"""The decoder: embeddings, layers, head. One for all families of `families/`.

A classifier has a classification head in place of the language model's head, unless that scores its texts.
It is small, and computes in float32 whatever the type of the other weights. A model for embeddings may have
no head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import Cache, LayerCache, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.adapters.adapters import Adapters
from gpu_worker.models.classification import token_scores
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.head import base_of, embedding, embedding_and_head, read_score
from gpu_worker.models.layers import make_layer
from gpu_worker.models.norms import read_norm
from gpu_worker.models.predictor import Predictor
from gpu_worker.models.rope import GridLines, rotary_tables, with_lines
from gpu_worker.models.sight import Seen
from gpu_worker.models.split import rank_config
from gpu_worker.models.vision import Tower
from gpu_worker.models.weights import Weights

Embed = Callable[[Tensor, Tensor], Tensor]
"""From tokens and their positions, [tokens] each, to the inputs of the first layer, [tokens, hidden_size]."""


class Decoder:
    """A decoder for causal language modelling or classification. See `models.causal_lm.CausalLM`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        positions: int,
        adapters: Adapters | None = None,
    ) -> None:
        """`positions`: longest sequence, in positions. `adapters`: those beside the products of layers.

        Raises `ModelError`.
        """
        self.adapters, self.positions = adapters, positions
        self.config = config = rank_config(config, weights.ranks.count)
        self.dtype = weights.dtype
        self.tower: Tower | None = None
        """Sees images; None: it has not been loaded."""
        self.in_grid = False
        """Whether images have tokens in rows and columns: see `see_in_grid`."""
        self.predictor: Predictor | None = None
        """The layer for multi-token prediction; None if it has not been loaded."""
        names = config.family.names
        base = base_of(config, weights)
        if config.has_lm_head:
            rows, self.head = embedding_and_head(config, base, weights, kernels)
        else:
            rows = embedding(config, base)
            if config.num_labels:
                self._score = read_score(config, weights)
        self.embed = _embedding(config, base, kernels, rows)
        self._norm = read_norm(config, base, kernels, names.final_norm, config.hidden_size)
        layers = replace(base, transposed=config.family.transposed)
        self._layers = [
            self._layer(
                number,
                replace(layers.under(names.layer.format(number)), multipliers=config.multipliers),
                kernels,
            )
            for number in range(config.num_layers)
        ]
        if adapters is not None:
            adapters.check()
        self.rotary = {
            rope: rotary_tables(rope, config.head_dim, positions, weights.device)
            for rope in set(config.ropes)
        }
        """Tables of the layers' rotary embeddings."""

    def _layer(self, number: int, weights: Weights, kernels: Kernels) -> Any:
        make = partial(make_layer, self.config, number)
        if self.adapters is not None:
            kernels = self.adapters.beside(kernels, make, weights)
        return make(weights, kernels)

    def __call__(
        self, tokens: Tensor, step: StepAttention, caches: Sequence[Cache], seen: Seen | None = None
    ) -> Tensor:
        """`seen`: what some of the tokens see in images."""
        hidden = self.embed(tokens, step.positions)
        if seen is not None:
            seen.put(hidden)
        deeper = iter(() if seen is None else seen.sight.deeper)
        for add_layer in self.layers(step, caches):
            add_layer(hidden)
            if seen is not None and (more := next(deeper, None)) is not None:
                hidden[seen.tokens] += more.to(hidden.dtype)
        return hidden

    def layers(self, step: StepAttention, caches: Sequence[Cache]) -> Iterator[Callable[[Tensor], None]]:
        """What adds the results of each layer to the residual [tokens, hidden_size], in place."""
        tables = [self.rotary[rope] for rope in self.config.ropes]
        for layer, rotary, cache in zip(self._layers, tables, self._by_layer(caches), strict=True):
            yield partial(layer.add_to, rotary=rotary, step=step, cache=cache)

    def see_in_grid(self, axes: Sequence[int], lines: int) -> Callable[[Tensor], None]:
        """Let images have tokens in rows and columns: `lines` of them in a step at most.

        `axes`: see `GridLines`. Returns what makes the lines of a step's tokens: see `step/images.py`. Raises
        `ModelError` if embeddings have fewer pairs.
        """
        if any(2 * len(axes) > rope.rotary_dim for rope in self.rotary):
            raise ModelError("config.json: mrope_section: it has more pairs than are rotated")
        self.in_grid = True
        self.rotary = {
            rope: with_lines(tables, self.positions, lines) for rope, tables in self.rotary.items()
        }
        grids = [GridLines(tables, axes, self.positions) for tables in self.rotary.values()]

        def turn(places: Tensor) -> None:
            for grid in grids:
                grid.make(places)

        return turn

    def _by_layer(self, caches: Sequence[Cache]) -> Sequence[Any]:
        """What each layer keeps: its pages, with those of its indexer; its state; both, or nothing."""
        if self.config.recurrence is not None:
            rest = iter(caches)
            each = [tuple(islice(rest, len(kept))) for kept in self.config.kept_by_layer]
            return [kept[0] if len(kept) == 1 else kept for kept in each]
        if self.config.index is None:
            return caches
        of_layers, of_indexers = list(caches[: len(self._layers)]), caches[len(self._layers) :]
        for number, index in zip(self.config.index.layers, of_indexers, strict=True):
            pages = of_layers[number]
            assert isinstance(pages, LayerCache)
            assert isinstance(index, LayerCache)
            of_layers[number] = replace(pages, index=index)
        return of_layers

    def normed(self, hidden: Tensor) -> Tensor:
        return self._norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(self._norm(hidden))

    def scores(self, hidden: Tensor) -> Tensor:
        if self.config.score_tokens:
            return token_scores(self.logits(hidden), self.config.score_tokens)
        return torch.nn.functional.linear(self._norm(hidden).float(), self._score)


def _embedding(
    config: ModelConfig, base: Weights, kernels: Kernels, rows: Callable[[Tensor], Tensor]
) -> Embed:
    family, size = config.family, config.hidden_size
    if family.names.positions is not None:
        begin = family.position_offset
        learned = base.read(f"{family.names.positions}.weight", begin + config.max_position, size)[begin:]
        return lambda tokens, positions: rows(tokens) + learned[positions]
    if family.names.embedding_norm is not None:
        norm = read_norm(config, base, kernels, family.names.embedding_norm, size)
        return lambda tokens, _: norm(rows(tokens))
    scale = config.embedding_scale
    if family.scales_embeddings:
        scale = torch.tensor(size**0.5, dtype=base.dtype).item()  # rounded to the weights' type
    if scale != 1.0:
        return lambda tokens, _: rows(tokens) * scale
    return lambda tokens, _: rows(tokens)
