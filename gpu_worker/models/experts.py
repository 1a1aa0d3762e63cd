"""Mixture of experts (Shazeer et al. 2017): a router selects a few experts, small MLPs, for each token.

Some families also have a shared expert, which every token goes to. No expert has a limit of tokens, so no
token is dropped, and the result of a token does not depend on the other tokens of its step.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gpu_worker.kernels.activated import activated
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Clamped, Expert, Routing, Unary
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.norms import identity
from gpu_worker.models.weights import Weights, in_tensors


class Experts:
    """A layer's mixture of experts, in the place of an MLP. See `layers.ResidualAdd`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._ranks, self._add = weights.ranks, kernels.add
        self._route = _router(config, weights, kernels)
        latent, hidden = shape.latent_size, config.hidden_size
        read = (
            _expert(
                config, weights.under(names.expert.format(number)), shape.intermediate_size, latent or hidden
            )
            for number in range(shape.num_experts)
        )
        activation = Clamped(shape.gate_alpha, shape.gate_limit) if names.clamped else config.activation
        self._mixture = kernels.mixture(read, shape.num_experts, activation)
        self._into: Unary = identity
        self._out_of: Unary | None = None
        if names.latent is not None and latent:
            into, out_of = names.latent
            self._into = kernels.linear(*weights.merged({into: latent}, hidden, False))
            self._out_of = kernels.linear(*weights.merged({out_of: hidden}, latent, False))
        self._shared = SharedExpert(config, weights, kernels) if shape.shared_intermediate_size else None

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        """Add the weighted sum of the selected experts, and the shared expert's result if there is one."""
        sums = self._mixture(self._into(hidden), *self._route(hidden))
        if self._out_of is not None:
            sums = self._out_of(sums.to(hidden.dtype))
        if self._shared is not None:
            self._shared.add_to(hidden, sums)
        self._add(residual, self._ranks.sum(sums))


class SharedExpert:
    """The expert that every token goes to. In some families a sigmoid gate scales its result."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        own = _expert(config, weights.under(names.shared), shape.shared_intermediate_size, config.hidden_size)
        self._inner: Unary
        if config.family.gated:
            self._inner = kernels.gated(own.up, None, config.activation)
        else:
            self._inner = activated(kernels, kernels.linear(own.up), config.activation)
        self._down, self._add = kernels.linear(own.down), kernels.add
        self._gate = None
        if names.shared_gate is not None:
            gate = weights.merged({names.shared_gate: 1}, config.hidden_size, False)
            self._gate = kernels.linear(*gate, dtype=torch.float32)

    def add_to(self, hidden: Tensor, sums: Tensor) -> None:
        """Add the result for hidden [tokens, hidden_size] to sums, float32: this rank's part of a sum over
        ranks."""
        gates = None if self._gate is None else self._gate(hidden)
        self._add(sums, self._down(self._inner(hidden)), gates)


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


def _expert(config: ModelConfig, weights: Weights, size: int, hidden: int) -> Expert:
    """This rank's part of an expert whose intermediate size is `size`, from and to `hidden` dimensions."""
    names = config.family.experts
    assert names is not None
    clamped, share = names.clamped, weights.share(size)
    together = names.stacked and weights.has(f"gate_up_proj.{'bias' if clamped else 'weight'}")
    parts = in_tensors(names.up, [share] * (2 if config.family.gated else 1))
    if together:
        parts = {"gate_up_proj": [share.times(2)] if clamped else [share] * 2}
    up, up_bias = weights.split_outputs(parts, hidden, clamped)
    down, down_bias = weights.split_inputs(names.down, hidden, share, clamped)
    if up_bias is not None and together:  # gates and ups alternate
        order = torch.arange(len(up_bias), device=up_bias.device).view(-1, 2).t().flatten()
        up, up_bias = up[order], up_bias[order]
    return Expert(up, down, up_bias, down_bias)
