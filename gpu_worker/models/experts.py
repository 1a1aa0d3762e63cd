"""Mixture of experts (Shazeer et al. 2017): a token goes through the few feed-forward blocks that a router
chooses for it, and through one that all share, where a family has that.

Every token reaches all of its experts, none is dropped: what a token comes to does not depend on the
others of its step. Tokens are grouped by expert, so that an expert's weights are read once for all of them.
"""

from itertools import accumulate

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Share, Weights
from gpu_worker.models.router import Router


class Experts:
    """The feed-forward block of a layer. See `layers.Adds`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._per_token, self._count = shape.per_token, shape.count
        self._ranks = weights.ranks
        self._route = Router(config, weights, kernels)
        self._experts = [
            Expert(config, weights.under(names.expert.format(number)), kernels, shape.size)
            for number in range(shape.count)
        ]
        self._shared = SharedExpert(config, weights, kernels) if shape.shared_size else None

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        """Add the chosen experts' results, weighted, in the order of the experts."""
        shares, chosen = self._route(hidden)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._count).tolist()
        sums = torch.zeros_like(residual, dtype=torch.float32)
        ends = accumulate(counts)
        for expert, count, end in zip(self._experts, counts, ends, strict=True):
            if count:
                places = order[end - count : end]
                tokens = places // self._per_token
                result = expert(hidden[tokens])
                sums.index_add_(0, tokens, result * shares.flatten()[places, None])
        if self._shared is not None:
            sums += self._shared(hidden)
        residual += self._ranks.sum(sums)


class Expert:
    """A feed-forward block with a gate."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels, size: int) -> None:
        names, hidden = config.family.experts, config.hidden_size
        assert names is not None
        up = weights.split_outputs({name: [Share(size)] for name in names.up}, hidden, False)
        self._inner = kernels.gated(*up, config.activation)
        self._down = kernels.linear(*weights.split_inputs(names.down, hidden, size, False))

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden_size] to the same; what this rank has of it."""
        return self._down(self._inner(hidden))


class SharedExpert:
    """The one that every token goes to, perhaps weighed by a gate of its own."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._expert = Expert(config, weights.under(names.shared), kernels, shape.shared_size)
        self._gate = None
        if names.shared_gate is not None:
            gate = weights.merged({names.shared_gate: 1}, config.hidden_size, False)
            self._gate = kernels.linear(*gate, dtype=torch.float32)

    def __call__(self, hidden: Tensor) -> Tensor:
        """See `Expert`."""
        result = self._expert(hidden)
        return result if self._gate is None else result * self._gate(hidden).sigmoid()
