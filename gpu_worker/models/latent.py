"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

For each token pages hold one row for all heads: the compressed row and a rotated key. Each head has weights
that project the compressed row to its key and value, `up_key` and `up_value`. Keys and values are never
computed: `up_key` is multiplied with the queries instead, and `up_value` with the result of attention.

    scores    query · (up_key row)                  =  (up_key^T query) · row
    out       sum of weights times (up_value row)   =  up_value (sum of weights times row)

So attention has one key head, of size kv_lora_rank + qk_rope_head_dim, whose values are the first
kv_lora_rank numbers of its keys. A page is read once for keys and values of all heads. Prompts are computed
in the same form. Computing the keys and values of a prompt's context would take fewer operations, because a
head's key and value are shorter than a row. But it would take memory in proportion to the context, and sums
would differ from those of a decode.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import AttentionSpec, LayerCache, Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Unary
from gpu_worker.models.config import LatentConfig, ModelConfig
from gpu_worker.models.indexer import Indexer
from gpu_worker.models.norms import identity
from gpu_worker.models.rope import RopeConfig, Yarn, rotary_order
from gpu_worker.models.split import all_reduced
from gpu_worker.models.weights import RankRows, Weights

NORM_EPS = 1e-6
"""Epsilon of the norms of compressed rows. config.json does not have it."""


class LatentAttention:
    """Takes the place of `layers.Attention`."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        shape, names, rope = config.latent, config.family.latent, config.ropes[number]
        assert shape is not None
        assert names is not None
        self._heads, self._shape = config.num_heads, shape
        self._compress, self._query = _queries(config, shape, weights, kernels, rope)
        down = weights.merged(
            {names.down: shape.kv_lora_rank + shape.qk_rope_head_dim}, config.hidden_size, config.qkv_bias
        )
        self._down = kernels.linear(*_ordered(down, rope, 1, shape.kv_lora_rank, shape.qk_rope_head_dim))
        self._norm = kernels.norm(weights.read(f"{names.norm}.weight", shape.kv_lora_rank), NORM_EPS)
        rows = config.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        up, _ = weights.split_outputs({names.up: [RankRows(rows)]}, shape.kv_lora_rank, False)
        each = up.view(config.num_heads, -1, up.shape[1])
        keys, values = each[:, : shape.qk_nope_head_dim], each[:, shape.qk_nope_head_dim :]
        self._absorbed = kernels.absorbed(keys, values.transpose(1, 2))
        score_scale = rope.scaling.score_scale if isinstance(rope.scaling, Yarn) else 1.0
        self._spec = AttentionSpec(
            scale=score_scale * (shape.qk_nope_head_dim + shape.qk_rope_head_dim) ** -0.5
        )
        inner = config.num_heads * shape.v_head_dim
        out = weights.split_inputs(config.family.names.out, config.hidden_size, inner, config.out_bias)
        self._out = all_reduced(kernels.linear(*out), weights.ranks)
        self._gates, self._activate = None, kernels.activate
        if names.gates is not None:
            gates, _ = weights.split_outputs(
                {names.gates: [RankRows(config.num_heads)]}, config.hidden_size, False
            )
            self._gates = kernels.linear(gates, dtype=torch.float32)
        self._indexer = None
        if config.index is not None and names.indexer is not None and number in config.index.layers:
            self._indexer = Indexer(config, number, weights.under(names.indexer), kernels)

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: LayerCache
    ) -> None:
        """See `layers.Attention.add_to`."""
        shape, tokens = self._shape, len(hidden)
        latent = self._down(hidden)
        self._norm.each(latent[:, : shape.kv_lora_rank])
        compressed = self._compress(hidden)
        queries = self._query(compressed).view(tokens, self._heads, -1)
        plain, rotated = queries[..., : shape.qk_nope_head_dim], queries[..., shape.qk_nope_head_dim :]
        query = torch.cat((self._absorbed.queries(plain), rotated), dim=-1)
        step.write_latent(query, latent, rotary, cache)
        if self._indexer is not None and cache.index is not None:
            self._indexer.select(hidden, compressed, rotary, step, cache.index)
        mixed = step.attend_selected(query, cache, self._spec).view(tokens, self._heads, shape.kv_lora_rank)
        values = self._absorbed.values(mixed)
        if self._gates is not None:
            gates = self._gates(hidden)
            self._activate(gates, "sigmoid")
            values *= gates.to(values.dtype)[..., None]
        self._out.add_to(values.flatten(1), residual)


def _queries(
    config: ModelConfig, shape: LatentConfig, weights: Weights, kernels: Kernels, rope: RopeConfig
) -> tuple[Unary, Unary]:
    """The projections from [tokens, hidden_size] to compressed queries, and from these to queries of all
    heads. If queries are not compressed, the first one changes nothing."""
    names, hidden = config.family.latent, config.hidden_size
    assert names is not None
    rows = [RankRows(config.num_heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim))]
    split = config.num_heads, shape.qk_nope_head_dim, shape.qk_rope_head_dim
    if not shape.q_lora_rank:
        whole = weights.split_outputs({names.query: rows}, hidden, False)
        return identity, kernels.linear(*_ordered(whole, rope, *split))
    down = kernels.linear(*weights.merged({names.query_down: shape.q_lora_rank}, hidden, config.qkv_bias))
    norm = kernels.norm(weights.read(f"{names.query_norm}.weight", shape.q_lora_rank), NORM_EPS)
    up = weights.split_outputs({names.query_up: rows}, shape.q_lora_rank, False)
    return lambda hidden: norm(down(hidden)), kernels.linear(*_ordered(up, rope, *split))


def _ordered(
    product: tuple[Tensor, Tensor | None], rope: RopeConfig, heads: int, kept: int, rotated: int
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with the rotated rows of each head, the last ones, in the order that kernels rotate."""
    within = rotary_order(rope, rotated)
    if within is None:
        return product
    weight, bias = product
    order = torch.arange(len(weight), device=weight.device).view(heads, kept + rotated)
    order[:, kept:] = order[:, kept + within.to(weight.device)]
    order = order.flatten()
    return weight[order], None if bias is None else bias[order]
