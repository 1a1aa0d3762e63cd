"""A mixture of experts, one expert after the other, with the products of any back end.

Tokens are grouped by expert, so that an expert's weights are read once for all of its tokens. The number of
tokens of each expert is read on the host: on a GPU that would stop the stream in every layer.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from gpu_worker.kernels.activated import activated
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import UNGATED, Clamped, Expert, Unary


class ReferenceMixture:
    """See `Mixture`."""

    def __init__(self, experts: Iterable[tuple[Unary, Unary]]) -> None:
        """`experts`: of each the product with gate and up, activated, and the product with down."""
        self._experts = list(experts)

    @classmethod
    def of(cls, kernels: Kernels, experts: Iterable[Expert], activation: str | Clamped) -> Self:
        """See `Kernels.mixture`."""
        products = (products_of(kernels, each, activation) for each in experts)
        return cls((activating(kernels, up, activation), down) for up, down in products)

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor) -> Tensor:
        """The results of a token's experts are added up in the order of the experts' numbers."""
        experts_per_token = selected_experts.shape[1]
        order = selected_experts.flatten().argsort(stable=True)
        counts = torch.bincount(selected_experts.flatten(), minlength=len(self._experts)).tolist()
        sums = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for (inner, down), count, end in zip(self._experts, counts, accumulate(counts), strict=True):
            if count:
                pairs = order[end - count : end]
                tokens = pairs // experts_per_token
                result = down(inner(hidden[tokens]))
                sums.index_add_(0, tokens, result * routing_weights.flatten()[pairs, None])
        return sums


class ClampedGate:
    """See `Clamped`."""

    def __init__(self, product: Unary, activation: Clamped) -> None:
        """`product`: to gate and up, [tokens, 2 * inner]."""
        self._product, self._activation = product, activation

    def __call__(self, hidden: Tensor) -> Tensor:
        """[tokens, size] to [tokens, inner]."""
        gate, up = self._product(hidden).chunk(2, 1)
        limit = self._activation.limit
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self._activation.alpha))


def products_of(kernels: Kernels, expert: Expert, activation: str | Clamped) -> tuple[Unary, Unary]:
    """An expert's product with gate and up, activated if the activation is one of `gated`; and with down."""
    if activation == UNGATED or isinstance(activation, Clamped):
        up: Unary = kernels.linear(expert.up, expert.up_bias)
    else:
        up = kernels.gated(expert.up, expert.up_bias, activation)
    return up, kernels.linear(expert.down, expert.down_bias)


def activating(kernels: Kernels, up: Unary, activation: str | Clamped) -> Unary:
    """The first of `products_of`, activated."""
    if isinstance(activation, Clamped):
        return ClampedGate(up, activation)
    return activated(kernels, up, activation) if activation == UNGATED else up
