"""A mixture of experts, one expert after the other, with the products of any back end.

Tokens are grouped by expert, so that an expert's weights are read once for all of its tokens. The number of
tokens of each expert is read on the host: on a GPU that would stop the stream in every layer.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Unary


class ReferenceMixture:
    """See `Mixture`."""

    def __init__(self, experts: Iterable[tuple[Unary, Unary]]) -> None:
        """`experts`: of each the gated product, and the product with down."""
        self._experts = list(experts)

    @classmethod
    def of(cls, kernels: Kernels, experts: Iterable[tuple[Tensor, Tensor]], activation: str) -> Self:
        """See `Kernels.mixture`."""
        return cls((kernels.gated(up, None, activation), kernels.linear(down)) for up, down in experts)

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
