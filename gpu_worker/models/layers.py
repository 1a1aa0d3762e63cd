"""A decoder layer: attention over the paged cache, and an MLP or a mixture of experts.

Query, key and value projections are one matrix, and so are gate and up: fewer, larger products. The
differences between families are resolved when a layer is constructed, not in a step. Sizes in the
configuration are those of one rank (`split.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from gpu_worker.kernels.activated import activated
from gpu_worker.kernels.attention import AttentionSpec, Cache, LayerCache, Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Linear, Unary
from gpu_worker.kernels.recurrence import StateCache
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.experts import Experts
from gpu_worker.models.families.family import DeltaNet, Mamba
from gpu_worker.models.latent import LatentAttention
from gpu_worker.models.norms import PostNorm, QueryKeyNorm, identity, read_norm
from gpu_worker.models.recurrent import GatedConvolution, GatedDeltaNet, GatedStateSpace
from gpu_worker.models.rope import rotary_order
from gpu_worker.models.split import all_reduced
from gpu_worker.models.weights import RankRows, Weights, in_tensors


class ResidualAdd(Protocol):
    """Adds its result to the residual: a projection, an MLP, a mixture of experts."""

    def add_to(self, hidden: Tensor, residual: Tensor, /) -> None:
        """Add the result for hidden [tokens, in] to residual [tokens, out], in place."""


class Mixer(Protocol):
    """What mixes the tokens of a sequence: attention, or a recurrence."""

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: Any
    ) -> None:
        """Add the result for hidden [tokens, hidden_size] to residual, in place. `cache`: what the layer
        keeps."""


class Attention:
    """Grouped-query attention over the paged cache."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        names = config.family.names
        query = config.num_heads * config.head_dim
        self._qkv = kernels.linear(*_projections(config, number, weights))
        self._spec = AttentionSpec(
            config.windows[number], softcap=config.attention_softcap, scale=config.attention_scale
        )
        self._slopes = _slopes(config, weights)
        self._sinks = _sinks(config, weights)
        self._norms = _head_norms(config, number, weights, kernels)
        self._gates = kernels.linear(*_gates(config, weights)) if config.family.gated_attention else None
        self._multiply = kernels.multiply
        out = kernels.linear(*weights.split_inputs(names.out, config.hidden_size, query, config.out_bias))
        self._out = _residual_add(config, weights, kernels, out, names.after_attention)

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: LayerCache
    ) -> None:
        """See `Mixer.add_to`."""
        query = step.rotate_and_write(self._norms(self._qkv(hidden)), rotary, cache)
        if rotary.query_scales is not None:
            query *= rotary.query_scales[step.positions].to(query.dtype)[:, None, None]
        attended = step.attend(query, cache, self._spec, self._slopes, self._sinks)
        if self._gates is not None:
            self._multiply(attended, self._gates(hidden), "sigmoid")
        self._out.add_to(attended, residual)


class BesideAttention:
    """Attention, and a recurrence that reads the same inputs, as in Falcon H1."""

    def __init__(self, attention: Mixer, recurrence: Mixer) -> None:
        self._attention, self._recurrence = attention, recurrence

    def add_to(
        self,
        hidden: Tensor,
        residual: Tensor,
        rotary: Rotary,
        step: StepAttention,
        cache: tuple[LayerCache, StateCache],
    ) -> None:
        """See `Mixer.add_to`."""
        pages, state = cache
        self._attention.add_to(hidden, residual, rotary, step, pages)
        self._recurrence.add_to(hidden, residual, rotary, step, state)


class MLP:
    """A feed-forward network: up, activation, down; or gate and up, gated activation, down (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        names, hidden, inner = config.family.names, config.hidden_size, config.intermediate_size
        down = kernels.linear(*weights.split_inputs(names.down, hidden, inner, config.mlp_bias))
        rows = [RankRows(inner)] * (2 if config.family.gated else 1)
        up = weights.split_outputs(in_tensors(names.up, rows), hidden, config.mlp_bias)
        self._inner: Unary
        if config.family.gated:
            self._inner = kernels.gated(*up, config.activation)
        else:
            self._inner = activated(kernels, kernels.linear(*up), config.activation)
        self._down = _residual_add(config, weights, kernels, down, names.after_mlp)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        self._down.add_to(self._inner(hidden), residual)


class Layer:
    """Attention, then an MLP or a mixture of experts, which reads the residual with attention's result."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        config = _of_layer(config, number)
        names = config.family.names
        self._attention_norm = _norm(config, weights, kernels, names.before_attention)
        self._mlp_norm = _norm(config, weights, kernels, names.before_mlp)
        self._attention = _mixer(config, number, weights, kernels)
        self._mlp = _mlp(config, number, weights, kernels)

    def add_to(self, hidden: Tensor, rotary: Rotary, step: StepAttention, cache: Cache) -> None:
        """Add the results of attention and MLP to the residual, hidden [tokens, hidden_size], in place."""
        self._attention.add_to(self._attention_norm(hidden), hidden, rotary, step, cache)
        self._mlp.add_to(self._mlp_norm(hidden), hidden)


class ParallelLayer(Layer):
    """Attention and MLP read the same residual stream: each has its own norm, as in GPT-NeoX, or both share
    one."""

    def add_to(self, hidden: Tensor, rotary: Rotary, step: StepAttention, cache: Cache) -> None:
        """See `Layer.add_to`."""
        normed = self._attention_norm(hidden)
        mlp_input = normed if self._mlp_norm is identity else self._mlp_norm(hidden)
        self._attention.add_to(normed, hidden, rotary, step, cache)
        self._mlp.add_to(mlp_input, hidden)


class MixerLayer:
    """Attention or a recurrence, and nothing else, as in Nemotron H."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        self._norm = _norm(config, weights, kernels, config.family.names.before_attention)
        self._mixer = _mixer(config, number, weights, kernels)

    def add_to(self, hidden: Tensor, rotary: Rotary, step: StepAttention, cache: Cache) -> None:
        """See `Layer.add_to`."""
        self._mixer.add_to(self._norm(hidden), hidden, rotary, step, cache)


class MLPLayer:
    """An MLP or a mixture of experts, and nothing else."""

    def __init__(self, config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> None:
        self._norm = _norm(config, weights, kernels, config.family.names.before_attention)
        self._mlp = _mlp(config, number, weights, kernels)

    def add_to(self, hidden: Tensor, rotary: Rotary, step: StepAttention, cache: tuple[()]) -> None:
        """See `Layer.add_to`. Such a layer keeps nothing."""
        self._mlp.add_to(self._norm(hidden), hidden)


def make_layer(
    config: ModelConfig, number: int, weights: Weights, kernels: Kernels
) -> Layer | MixerLayer | MLPLayer:
    """Layer `number`, whose tensors are `weights`."""
    kind: type[Layer | MixerLayer | MLPLayer] = ParallelLayer if config.parallel else Layer
    if config.recurrence is not None and config.recurrence.alone is not None:
        kind = MLPLayer if number in config.recurrence.alone else MixerLayer
    return kind(config, number, weights, kernels)


def _of_layer(config: ModelConfig, number: int) -> ModelConfig:
    """The configuration with the names of layer `number`."""
    names, recurrence = config.family.recurrent_names, config.recurrence
    if names is None or recurrence is None or number not in recurrence.layers:
        return config
    return replace(config, family=replace(config.family, names=names))


def _mixer(config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> Mixer:
    """What mixes tokens in layer `number`."""
    recurrence = config.recurrence
    if recurrence is None or number not in recurrence.layers:
        return (LatentAttention if config.latent else Attention)(config, number, weights, kernels)
    kind: type[GatedConvolution | GatedDeltaNet | GatedStateSpace] = GatedConvolution
    if isinstance(config.family.recurrent, DeltaNet):
        kind = GatedDeltaNet
    elif isinstance(config.family.recurrent, Mamba):
        kind = GatedStateSpace
    mixer = kind(config, weights, kernels)
    if not recurrence.beside_attention:
        return mixer
    return BesideAttention(Attention(config, number, weights, kernels), mixer)


def _mlp(config: ModelConfig, number: int, weights: Weights, kernels: Kernels) -> ResidualAdd:
    """The MLP or the mixture of experts of layer `number`."""
    experts = config.experts is not None and number in config.experts.layers
    return (Experts if experts else MLP)(config, weights, kernels)


def _norm(
    config: ModelConfig, weights: Weights, kernels: Kernels, name: str | None
) -> Callable[[Tensor], Tensor]:
    """Norm `name` of hidden states, if the family has it."""
    return read_norm(config, weights, kernels, name, config.hidden_size) if name else identity


def _residual_add(
    config: ModelConfig, weights: Weights, kernels: Kernels, product: Linear, norm: str | None
) -> ResidualAdd:
    """`product`, summed over ranks, and normalized before it is added if the family has norm `norm`."""
    product = all_reduced(product, weights.ranks)
    if norm is None:
        return product
    return PostNorm(product, read_norm(config, weights, kernels, norm, config.hidden_size))


def _projections(config: ModelConfig, number: int, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the joint projection of queries, keys and values, head after head. The dimensions of
    a head have the order that kernels rotate."""
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    query, key = heads * size, kv_heads * size
    keys = RankRows(key, config.key_copies)
    # With one key head the order by key head is the order queries, keys, values.
    by_head = config.family.by_head and weights.ranks.count * kv_heads > config.key_copies
    gated = config.family.gated_attention
    rows = [RankRows(query + 2 * key)] if by_head else [RankRows((1 + gated) * query), keys, keys]
    parts = in_tensors(config.family.names.qkv, rows)
    weight, bias = weights.split_outputs(parts, config.hidden_size, config.qkv_bias)
    if gated:
        units = torch.arange(2 * (query + key), device=weight.device).view(-1, size)
        units = torch.cat((units[: 2 * heads : 2], units[2 * heads :])).flatten()
        weight, bias = weight[units], None if bias is None else bias[units]
    order = torch.arange(query + 2 * key, device=weight.device).view(-1, size)
    if by_head:
        shared = order.view(kv_heads, -1, size)
        order = torch.cat((shared[:, :-2].reshape(query // size, size), shared[:, -2], shared[:, -1]))
    within = rotary_order(config.ropes[number], size)
    if within is not None:
        order[: heads + kv_heads] = order[: heads + kv_heads, within]
    elif not by_head:
        return weight, bias
    order = order.flatten()
    return weight[order], None if bias is None else bias[order]


def _slopes(config: ModelConfig, weights: Weights) -> Tensor | None:
    """Slopes of this rank's heads, float32 [heads]. None: the model has no linear biases."""
    first = weights.ranks.rank * config.num_heads
    mine = config.slopes[first : first + config.num_heads]
    return torch.tensor(mine, device=weights.device) if mine else None


def _sinks(config: ModelConfig, weights: Weights) -> Tensor | None:
    """Logits of the learned sinks of this rank's heads, float32 [heads]. None: the model has none."""
    if config.family.names.sinks is None:
        return None
    heads, ranks = config.num_heads, weights.ranks
    mine = slice(ranks.rank * heads, (ranks.rank + 1) * heads)
    return weights.of(torch.float32).rows(config.family.names.sinks, mine, ranks.count * heads)


def _gates(config: ModelConfig, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the projection to the gates of attention's results, head after head."""
    query = config.num_heads * config.head_dim
    parts = {config.family.names.qkv[0]: [RankRows(2 * query)]}
    weight, bias = weights.split_outputs(parts, config.hidden_size, config.qkv_bias)
    units = torch.arange(2 * query, device=weight.device).view(-1, config.head_dim)[1::2].flatten()
    return weight[units], None if bias is None else bias[units]


def _of_heads(within: Tensor | None, size: int) -> Tensor | None:
    """The order of a row of whole heads, int64 [size], from the order within a head."""
    if within is None:
        return None
    return (torch.arange(0, size, len(within))[:, None] + within).flatten()


def _head_norms(
    config: ModelConfig, number: int, weights: Weights, kernels: Kernels
) -> Callable[[Tensor], Tensor]:
    names, size = config.family.names, config.head_dim
    if config.clip_qkv:
        return partial(torch.clamp_, min=-config.clip_qkv, max=config.clip_qkv)
    if names.query_norm is None or names.key_norm is None:
        return identity
    rows = config.num_heads * size, config.num_kv_heads * size
    sizes = rows if config.family.norms_all_heads else (size, size)
    within = rotary_order(config.ropes[number], size)
    query, key = (
        read_norm(config, weights, kernels, name, each, _of_heads(within, each))
        for name, each in zip((names.query_norm, names.key_norm), sizes, strict=True)
    )
    return QueryKeyNorm(query, key, *rows)
