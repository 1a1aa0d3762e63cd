"""Recurrent layers: in the place of attention, with a state in place of keys and values.

A gated delta net keeps a matrix for each head, which it changes a little with each token (Yang et al. 2024).
A state space, as in Mamba-2, adds to such a matrix whatever it has already (Dao and Gu 2024).
In Kimi Delta Attention each row of it has a decay of its own (Kimi Team 2025).
A short convolution keeps the latest inputs alone, as in LFM2. Their projections are products like any other;
what lies between these is in `kernels/recurrence.py`."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gpu_worker.kernels.attention import Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.recurrence import Decay, DeltaRule, Filters, StateCache, StateSpace
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.delta_net import JointProjections, LowRankProjections, Projections, read_decay
from gpu_worker.models.families.family import DeltaNet, KimiDelta, Mamba, ShortConvolution
from gpu_worker.models.recurrent_config import RecurrentConfig
from gpu_worker.models.split import all_reduced
from gpu_worker.models.weights import RankRows, Weights


class GatedDeltaNet:
    """A gated delta net, whose results are normalized head by head and gated."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        names, sizes = config.family.recurrent, config.recurrence
        assert isinstance(names, DeltaNet)
        assert sizes is not None
        queries, values, hidden = sizes.queries, sizes.values, config.hidden_size
        self._project: Projections
        if isinstance(names, KimiDelta) and names.down:
            self._project = LowRankProjections(names, sizes, hidden, weights, kernels)
        else:
            self._project = JointProjections(names, sizes, hidden, weights, kernels)
        channels = [queries, queries, values]
        self._filters = replace(_filters(names.filters, channels, sizes, weights), silu=True)
        self._rule = DeltaRule(read_decay(names, sizes, weights), sizes.update_scale, sizes.tiled)
        own = weights.of(torch.float32) if names.norm_float32 else weights
        norm = own.read(f"{names.norm}.weight", sizes.value_size)
        self._norm = kernels.norm(norm, names.norm_eps or config.norm_eps)
        self._multiply, self._activation = kernels.multiply, names.activation
        out, _ = weights.split_inputs(names.out, hidden, values, False)
        self._out = all_reduced(kernels.linear(out), weights.ranks)

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: StateCache
    ) -> None:
        """Add the result for hidden [tokens, hidden_size] to residual, in place. Nothing is rotated."""
        inputs, output_gates, gates = self._project(hidden)
        qkv = step.convolve(inputs, self._filters, cache)
        out = step.delta_rule(qkv, gates, self._rule, cache)
        self._norm.each(out)
        self._multiply(out, output_gates, self._activation)
        self._out.add_to(out, residual)


class GatedStateSpace:
    """A state space of Mamba-2, whose results are gated, and in most families normalized group by group."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        names, sizes = config.family.recurrent, config.recurrence
        assert isinstance(names, Mamba)
        assert sizes is not None
        weights, hidden, heads = weights.under(names.prefix), config.hidden_size, sizes.heads
        parts = [sizes.values, sizes.queries, sizes.queries]  # x, B, C
        rows = [RankRows(count) for count in (sizes.values, *parts, heads)]
        weight, bias = weights.split_outputs({names.inputs: rows}, hidden, sizes.bias)
        self._gates, last = sizes.values, sizes.values + sizes.channels
        self._inputs = kernels.linear(weight[:last], None if bias is None else bias[:last])
        steps = weight[last:], None if bias is None else bias[last:]
        self._steps = kernels.linear(*steps, dtype=torch.float32)
        self._filters = replace(_filters([names.filters], parts, sizes, weights), silu=True)
        exact, ranks = weights.of(torch.float32), weights.ranks
        rate, bias, skip = (
            exact.rows(name, slice(ranks.rank * heads, (ranks.rank + 1) * heads), ranks.count * heads)
            for name in (names.decay_rate, names.decay_bias, names.skip)
        )
        self._space = StateSpace(Decay(-rate.exp(), bias), skip, sizes.shortest_step, sizes.longest_step)
        self._multiply = kernels.multiply
        norm = None if sizes.norm == "none" else GroupNorm(names, sizes, weights, kernels)
        self._before, self._after = (norm if sizes.norm == when else None for when in ("before", "after"))
        self._out = all_reduced(
            kernels.linear(*weights.split_inputs(names.out, hidden, sizes.values, sizes.bias)), ranks
        )

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: StateCache
    ) -> None:
        """See `GatedDeltaNet.add_to`."""
        inputs = self._inputs(hidden)
        mixed = step.convolve(inputs[:, self._gates :], self._filters, cache)
        out = step.state_space(mixed, self._steps(hidden), self._space, cache)
        if self._before is not None:
            self._before(out)
        self._multiply(out, inputs[:, : self._gates], "silu")
        if self._after is not None:
            self._after(out)
        self._out.add_to(out, residual)


class GroupNorm:
    """RMS norm of the results of each group's heads by themselves, with a weight for each number."""

    def __init__(self, names: Mamba, sizes: RecurrentConfig, weights: Weights, kernels: Kernels) -> None:
        first, whole = weights.ranks.rank * sizes.values, weights.ranks.count * sizes.values
        weight = weights.rows(f"{names.norm}.weight", slice(first, first + sizes.values), whole)
        self._weight, self._multiply = None if sizes.key_heads == 1 else weight, kernels.multiply
        ones = torch.ones_like(weight[: sizes.values // sizes.key_heads])
        self._norm = kernels.norm(weight if self._weight is None else ones, sizes.norm_eps)

    def __call__(self, rows: Tensor) -> None:
        """Normalize rows [tokens, heads * value_size] in place."""
        self._norm.each(rows)
        if self._weight is not None:
            self._multiply(rows, self._weight.expand_as(rows), "none")


class GatedConvolution:
    """A convolution of a few tokens, whose inputs and results are gated."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        names, sizes = config.family.recurrent, config.recurrence
        assert isinstance(names, ShortConvolution)
        assert sizes is not None
        self._channels = channels = sizes.channels
        parts = {names.inputs: [RankRows(channels)] * 3}
        self._inputs = kernels.linear(*weights.split_outputs(parts, config.hidden_size, sizes.bias))
        self._filters = _filters([names.filters], [channels], sizes, weights)
        self._multiply = kernels.multiply
        out = weights.split_inputs(names.out, config.hidden_size, channels, sizes.bias)
        self._out = all_reduced(kernels.linear(*out), weights.ranks)

    def add_to(
        self, hidden: Tensor, residual: Tensor, rotary: Rotary, step: StepAttention, cache: StateCache
    ) -> None:
        """See `GatedDeltaNet.add_to`."""
        before, after, inputs = self._inputs(hidden).chunk(3, dim=1)
        self._multiply(inputs, before, "none")
        out = step.convolve(inputs, self._filters, cache)
        self._multiply(out, after, "none")
        self._out.add_to(out, residual)


def _filters(names: Sequence[str], parts: Sequence[int], sizes: RecurrentConfig, weights: Weights) -> Filters:
    """Filters of this rank's channels. `parts`: numbers of channels that lie one after the other, each of
    which is split among ranks."""
    ranks, plain = weights.ranks, replace(weights.of(torch.float32), keeps=frozenset())

    def read(what: str, *rest: int) -> Tensor:
        tensors = [f"{name}.{what}" for name in names]
        whole = plain.joined(tensors, sum(parts) * ranks.count, *rest)
        pieces = torch.split(whole, [channels * ranks.count for channels in parts])
        return torch.cat([piece.chunk(ranks.count)[ranks.rank] for piece in pieces])

    weight = read("weight", 1, sizes.taps)[:, 0].T.contiguous()
    return Filters(weight, read("bias") if sizes.filter_bias else None)
