"""Mixture of experts (Shazeer et al. 2017): a router selects a few experts, small MLPs, for each token.

Some families also have a shared expert, which every token goes to. No expert has a limit of tokens, so no
token is dropped, and the result of a token does not depend on the other tokens of its step.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Mixture, Routing, Unary
from gpu_worker.kernels.reference.mixture import ReferenceMixture
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.experts_config import ExpertsConfig
from gpu_worker.models.weights import RankRows, Weights


class Experts:
    """A layer's mixture of experts, in the place of an MLP. See `layers.ResidualAdd`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._ranks = weights.ranks
        self._route = _router(config, weights, kernels)
        self._mixture: Mixture
        if names.clamped:
            self._mixture = ReferenceMixture(_clamped(shape, config, weights, kernels))
        else:
            read = (
                _weights(config, weights.under(names.expert.format(number)), shape.intermediate_size)
                for number in range(shape.num_experts)
            )
            self._mixture = kernels.mixture(read, shape.num_experts, config.activation)
        self._shared = SharedExpert(config, weights, kernels) if shape.shared_intermediate_size else None

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        """Add the weighted sum of the selected experts, and the shared expert's result if there is one."""
        sums = self._mixture(hidden, *self._route(hidden))
        if self._shared is not None:
            sums += self._shared(hidden)
        residual += self._ranks.sum(sums)


class ClampedGate:
    """The gated product of gpt-oss: gate and up are clamped."""

    def __init__(self, product: Unary, alpha: float, limit: float, alternate: bool) -> None:
        """`product`: to gate and up, [tokens, 2 * inner]. `alternate`: they do, else gate comes before up."""
        self._product, self._alpha, self._limit, self._alternate = product, alpha, limit, alternate

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, size] to [tokens, inner]."""
        both = self._product(hidden)
        gate, up = (both[:, ::2], both[:, 1::2]) if self._alternate else both.chunk(2, 1)
        gate, up = gate.clamp(max=self._limit), up.clamp(-self._limit, self._limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self._alpha))


class SharedExpert:
    """The expert that every token goes to. In some families a sigmoid gate scales its result."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        up, down = _weights(config, weights.under(names.shared), shape.shared_intermediate_size)
        self._inner, self._down = kernels.gated(up, None, config.activation), kernels.linear(down)
        self._gate = None
        if names.shared_gate is not None:
            gate = weights.merged({names.shared_gate: 1}, config.hidden_size, False)
            self._gate = kernels.linear(*gate, dtype=torch.float32)

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden_size] to the same: this rank's part of the sum over ranks."""
        result = self._down(self._inner(hidden))
        return result if self._gate is None else result * self._gate(hidden).sigmoid()


def _router(
    config: ModelConfig, weights: Weights, kernels: Kernels
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """From hidden states [tokens, hidden_size] to the results of `Route`."""
    shape, names = config.experts, config.family.experts
    assert shape is not None
    assert names is not None
    weight, bias = weights.merged({names.router: shape.num_experts}, config.hidden_size, names.clamped)
    product = kernels.linear(weight, bias, dtype=torch.float32)
    routing = Routing(
        shape.experts_per_token,
        names.scoring_func,
        shape.normalized,
        shape.scale,
        shape.num_groups,
        shape.top_k_groups,
        names.group_top_k,
    )
    bias_name, exact = names.score_correction_bias, weights.of(torch.float32)
    route = kernels.route(routing, exact.read(bias_name, shape.num_experts) if bias_name else None)
    return lambda hidden: route(product(hidden))


def _weights(config: ModelConfig, weights: Weights, size: int) -> tuple[Tensor, Tensor]:
    """Weights of an expert: gate and up, [2 * size, hidden_size], and down, [hidden_size, size]."""
    names, hidden = config.family.experts, config.hidden_size
    assert names is not None
    parts = {name: [RankRows(size)] for name in names.up}
    if names.stacked and weights.has("gate_up_proj.weight"):
        parts = {"gate_up_proj": [RankRows(size)] * 2}
    up, _ = weights.split_outputs(parts, hidden, False)
    down, _ = weights.split_inputs(names.down, hidden, size, False)
    return up, down


def _clamped(
    shape: ExpertsConfig, config: ModelConfig, weights: Weights, kernels: Kernels
) -> Iterator[tuple[Unary, Unary]]:
    """The products of each expert, with biases. GGUF files have gate and up apart."""
    names, hidden, size = config.family.experts, config.hidden_size, shape.intermediate_size
    assert names is not None
    for number in range(shape.num_experts):
        expert = weights.under(names.expert.format(number))
        apart = expert.has(f"{names.up[0]}.bias")
        rows = dict.fromkeys(names.up, size) if apart else {"gate_up_proj": 2 * size}
        up = expert.split_outputs({name: [RankRows(count)] for name, count in rows.items()}, hidden, True)
        down = expert.split_inputs(names.down, hidden, size, True)
        gate = ClampedGate(kernels.linear(*up), shape.gate_alpha, shape.gate_limit, not apart)
        yield gate, kernels.linear(*down)
