"""The indexer of sparse attention (DeepSeek-V3.2, section 2.1) selects the tokens that a token attends to.

Each token has one index key. Index queries come from the compressed queries of latent attention:

    index key        norm(wk hidden)                      in pages of its own, beside those of the layer
    index queries    wq_b compressed                      a few small heads
    weights          weights_proj hidden                  one for each head

The official code multiplies index queries and keys with a Hadamard matrix before it rounds them to fp8. That
changes no product of the two, and nothing is rounded to fp8 here.
"""

from dataclasses import replace

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.norms import LayerNorm
from gpu_worker.models.rope import rotary_order
from gpu_worker.models.weights import Weights

NORM_EPS = 1e-6
"""Epsilon of the norm of index keys. config.json does not have it."""


class Indexer:
    """The indexer of one layer. All ranks compute all of its heads."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        """`weights`: those of the indexer."""
        shape, latent = config.index, config.latent
        assert shape is not None
        assert latent is not None
        self._shape = shape
        order = _order(config, number).to(weights.device)
        heads = torch.arange(shape.heads, device=weights.device)[:, None] * shape.head_dim + order
        query, _ = weights.merged({"wq_b": len(heads.flatten())}, latent.q_lora_rank, False)
        key, _ = weights.merged({"wk": shape.head_dim}, config.hidden_size, False)
        head_weights, _ = weights.merged({"weights_proj": shape.heads}, config.hidden_size, False)
        self._query, self._key = kernels.linear(query[heads.flatten()]), kernels.linear(key[order])
        scale, bias = (weights.read(f"k_norm.{each}", shape.head_dim)[order] for each in ("weight", "bias"))
        self._norm = LayerNorm(scale, bias, NORM_EPS)
        self._weights = kernels.linear(head_weights, dtype=torch.float32)
        self._scale = (shape.heads * shape.head_dim) ** -0.5

    def select(
        self, hidden: Tensor, compressed: Tensor, rotary: Rotary, step: StepAttention, cache: LayerCache
    ) -> None:
        """Write the index keys of the step's tokens, and select what they attend to.

        `hidden`: [tokens, hidden_size]. `compressed`: queries [tokens, q_lora_rank].
        """
        query = self._query(compressed).view(len(hidden), self._shape.heads, -1)
        step.write_latent(query, self._norm(self._key(hidden)), rotary, cache)
        step.select(query, self._weights(hidden) * self._scale, cache, self._shape.top_k)


def _order(config: ModelConfig, number: int) -> Tensor:
    """The checkpoint's dimension at each place of an index key, int64 [head_dim]: rotated ones last, in the
    order that kernels rotate."""
    shape, rotated = config.index, config.head_dim
    assert shape is not None
    rope = replace(config.ropes[number], interleaved=shape.interleaved)
    within = rotary_order(rope, rotated)
    return torch.cat(
        (torch.arange(rotated, shape.head_dim), torch.arange(rotated) if within is None else within)
    )
