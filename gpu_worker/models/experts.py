"""Mixture of experts (Shazeer et al. 2017): a token goes through the few feed-forward blocks that a router
chooses for it.

Every token reaches all of its experts, none is dropped: what a token comes to does not depend on the
others of its step. Tokens are grouped by expert, so that an expert's weights are read once for all of them.
"""

from itertools import accumulate

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Share, Weights


class Experts:
    """The feed-forward block of a layer. See `layers.Adds`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names, hidden = config.experts, config.family.experts, config.hidden_size
        assert shape is not None
        assert names is not None
        self._per_token, self._count, self._normalized = shape.per_token, shape.count, shape.normalized
        self._router = kernels.linear(*weights.merged({names.router: shape.count}, hidden, False))
        self._experts = []
        self._ranks = weights.ranks
        for number in range(shape.count):
            own = weights.under(names.expert.format(number))
            up = own.split_outputs({name: [Share(shape.size)] for name in names.up}, hidden, False)
            down = own.split_inputs(names.down, hidden, shape.size, False)
            self._experts.append((kernels.gated(*up, config.activation), kernels.linear(*down)))

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        """Add the chosen experts' results, weighted, in the order of the experts."""
        shares, chosen = self._route(hidden)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._count).tolist()
        sums = torch.zeros_like(residual, dtype=torch.float32)
        ends = accumulate(counts)
        for (gated, down), count, end in zip(self._experts, counts, ends, strict=True):
            if count:
                places = order[end - count : end]
                tokens = places // self._per_token
                result = down(gated(hidden[tokens]))
                sums.index_add_(0, tokens, result * shares.flatten()[places, None])
        residual += self._ranks.sum(sums)

    def _route(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Shares, float32, and numbers, int64, of each token's experts; [tokens, per_token] each."""
        likely = self._router(hidden).softmax(-1, dtype=torch.float32)
        shares, chosen = likely.topk(self._per_token, dim=-1)
        if self._normalized:
            shares = shares / shares.sum(-1, keepdim=True)
        return shares, chosen
