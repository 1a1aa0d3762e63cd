"""Mixture of experts (Shazeer et al. 2017): a token goes through the few feed-forward blocks that a router
chooses for it, and through one that all share, where a family has that.

Every token reaches all of its experts, none is dropped: what a token comes to does not depend on the
others of its step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels, Routing
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Share, Weights


class Experts:
    """The feed-forward block of a layer. See `layers.Adds`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._ranks = weights.ranks
        self._route = _router(config, weights, kernels)
        read = (
            _weights(config, weights.under(names.expert.format(number)), shape.size)
            for number in range(shape.count)
        )
        self._mixture = kernels.mixture(read, shape.count, config.activation)
        self._shared = SharedExpert(config, weights, kernels) if shape.shared_size else None

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        """Add the chosen experts' results, weighted, and that of the shared one."""
        sums = self._mixture(hidden, *self._route(hidden))
        if self._shared is not None:
            sums += self._shared(hidden)
        residual += self._ranks.sum(sums)


class SharedExpert:
    """The one that every token goes to, perhaps weighed by a gate of its own."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        up, down = _weights(config, weights.under(names.shared), shape.shared_size)
        self._inner, self._down = kernels.gated(up, None, config.activation), kernels.linear(down)
        self._gate = None
        if names.shared_gate is not None:
            gate = weights.merged({names.shared_gate: 1}, config.hidden_size, False)
            self._gate = kernels.linear(*gate, dtype=torch.float32)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden_size] to the same; what this rank has of it."""
        result = self._down(self._inner(hidden))
        return result if self._gate is None else result * self._gate(hidden).sigmoid()


def _router(
    config: ModelConfig, weights: Weights, kernels: Kernels
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Of hidden states [tokens, hidden_size]: see `Route`."""
    shape, names = config.experts, config.family.experts
    assert shape is not None
    assert names is not None
    weight, bias = weights.merged({names.router: shape.count}, config.hidden_size, False)
    product = kernels.linear(weight, bias, dtype=torch.float32)
    routing = Routing(
        shape.per_token,
        names.scores,
        shape.normalized,
        shape.scale,
        shape.groups,
        shape.groups_per_token,
        names.heard,
    )
    exact = weights.of(torch.float32)
    correction = exact.read(names.correction, shape.count) if names.correction else None
    route = kernels.route(routing, correction)
    return lambda hidden: route(product(hidden))


def _weights(config: ModelConfig, weights: Weights, size: int) -> tuple[Tensor, Tensor]:
    """Of an expert: gate and up, [2 * size, hidden_size], and what follows them, [hidden_size, size]."""
    names, hidden = config.family.experts, config.hidden_size
    assert names is not None
    up, _ = weights.split_outputs({name: [Share(size)] for name in names.up}, hidden, False)
    down, _ = weights.split_inputs(names.down, hidden, size, False)
    return up, down
