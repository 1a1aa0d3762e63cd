"""Recurrent layers: in the place of attention, with a state in place of keys and values.

A gated delta net keeps a matrix for each head, which it changes a little with each token (Yang et al. 2024).
In Kimi Delta Attention each row of it has a decay of its own (Kimi Team 2025).
A short convolution keeps the latest inputs alone, as in LFM2. Their projections are products like any other;
what lies between these is in `kernels/recurrence.py`."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gpu_worker.kernels.attention import Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.delta_net import JointProjections, LowRankProjections, Projections, read_decay
from gpu_worker.models.families.family import DeltaNet, KimiDelta, ShortConvolution
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
    return Filters(weight, read("bias") if sizes.bias else None)
