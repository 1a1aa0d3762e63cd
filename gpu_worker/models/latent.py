"""Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): pages hold, of all heads together, one
compressed row for each token, and one key part with its position, rotated.

What makes keys and values of a compressed row, `up_key` and `up_value`, differs from head to head. They are
never made: as products may be done in any order, the one goes to the queries and the other behind attention.

    scores    query · (up_key row)                  =  (up_key^T query) · row
    out       sum of weights times (up_value row)   =  up_value (sum of weights times row)

So attention is that of one key head for all queries, of size rank + rotated, whose values are the first
numbers of its keys: one page is read for both, once for all heads. A chunk of a prompt is computed in the
same form. To make the keys and values of its context would take fewer operations where many tokens look at
each of them, because a head's own key and value are shorter than a row; but it would take memory by the
length of the context, and the sums would not be those of a decode.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Unary
from gpu_worker.models.config import LatentConfig, ModelConfig
from gpu_worker.models.loader import Share, Weights
from gpu_worker.models.rope import RopeConfig, Yarn, rotary_order
from gpu_worker.models.split import summed

NORM_EPS = 1e-6
"""Of the norms of what is compressed; no config.json says it."""


class LatentAttention:
    """In place of `layers.Attention`."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        shape, names, rope = config.latent, config.family.latent, config.ropes[number]
        assert shape is not None
        assert names is not None
        self._heads, self._shape = config.num_heads, shape
        self._query = _queries(config, shape, weights, kernels, rope)
        down = weights.merged({names.down: shape.rank + shape.rotated}, config.hidden_size, config.qkv_bias)
        self._down = kernels.linear(*_ordered(down, rope, 1, shape.rank, shape.rotated))
        self._norm = kernels.norm(weights.read(f"{names.norm}.weight", shape.rank), NORM_EPS)
        rows = config.num_heads * (shape.key + shape.value)
        up, _ = weights.split_outputs({names.up: [Share(rows)]}, shape.rank, False)
        each = up.view(config.num_heads, -1, shape.rank)
        keys, values = each[:, : shape.key], each[:, shape.key :]
        self._up_key, self._up_value = keys.contiguous(), values.transpose(1, 2).contiguous()
        sharpness = rope.scaling.sharpness if isinstance(rope.scaling, Yarn) else 1.0
        self._spec = AttentionSpec(scale=sharpness * (shape.key + shape.rotated) ** -0.5)
        inner = config.num_heads * shape.value
        out = weights.split_inputs(config.family.names.out, config.hidden_size, inner, config.out_bias)
        self._out = summed(kernels.linear(*out), weights.ranks)

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: LayerCache
    ) -> None:
        """See `layers.Attention.add_to`."""
        shape, tokens = self._shape, len(hidden)
        latent = self._down(hidden)
        self._norm.each(latent[:, : shape.rank])
        queries = self._query(hidden).view(tokens, self._heads, -1)
        asked, turned = queries[..., : shape.key], queries[..., shape.key :]
        absorbed = torch.bmm(asked.transpose(0, 1), self._up_key).transpose(0, 1)
        query = torch.cat((absorbed, turned), dim=-1)
        step.write_latent(query, latent, rotary, cache)
        mixed = step.attend(query, cache, self._spec).view(tokens, self._heads, shape.rank)
        values = torch.bmm(mixed.transpose(0, 1), self._up_value).transpose(0, 1)
        self._out.add_to(values.flatten(1), residual)


def _queries(
    config: ModelConfig, shape: LatentConfig, weights: Weights, kernels: Kernels, rope: RopeConfig
) -> Unary:
    """Of [tokens, hidden_size]: queries of all heads, through a compressed form or not."""
    names, hidden = config.family.latent, config.hidden_size
    assert names is not None
    rows = [Share(config.num_heads * (shape.key + shape.rotated))]
    split = config.num_heads, shape.key, shape.rotated
    if not shape.query_rank:
        whole = weights.split_outputs({names.query: rows}, hidden, False)
        return kernels.linear(*_ordered(whole, rope, *split))
    down = kernels.linear(*weights.merged({names.query_down: shape.query_rank}, hidden, config.qkv_bias))
    norm = kernels.norm(weights.read(f"{names.query_norm}.weight", shape.query_rank), NORM_EPS)
    up = weights.split_outputs({names.query_up: rows}, shape.query_rank, False)
    product = kernels.linear(*_ordered(up, rope, *split))
    return lambda hidden: product(norm(down(hidden)))


def _ordered(
    product: tuple[Tensor, Tensor | None], rope: RopeConfig, heads: int, kept: int, rotated: int
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with the last rows of each head, those that are rotated, in the kernels' order."""
    within = rotary_order(rope, rotated)
    if within is None:
        return product
    weight, bias = product
    order = torch.arange(len(weight), device=weight.device).view(heads, kept + rotated)
    order[:, kept:] = order[:, kept + within.to(weight.device)]
    order = order.flatten()
    return weight[order], None if bias is None else bias[order]
