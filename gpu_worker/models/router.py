"""Which experts a token goes to, and how much each of them counts.

scores    softmax or sigmoid of what the router says of each expert
ranks     the scores, corrected where a family does so: they choose, and are then forgotten
groups    of experts, of which those with the best ranks are looked at (DeepSeek-V2, section 2.1.2)
shares    the scores of the chosen, made to add up to 1 where a family does so
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Weights

SCORES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}


class Router:
    """Of one layer."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels) -> None:
        shape, names = config.experts, config.family.experts
        assert shape is not None
        assert names is not None
        self._shape, self._heard = shape, names.heard
        product = weights.merged({names.router: shape.count}, config.hidden_size, False)
        self._product = kernels.linear(*product, dtype=torch.float32)
        self._score = SCORES[names.scores]
        exact = weights.of(torch.float32)
        self._correction = exact.read(names.correction, shape.count) if names.correction else None

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Shares, float32, and numbers, int64, of each token's experts; [tokens, per_token] each."""
        shape, scores = self._shape, self._score(self._product(hidden))
        ranks = scores if self._correction is None else scores + self._correction
        if shape.groups > 1:
            ranks = self._in_groups(ranks)
        chosen = ranks.topk(shape.per_token, dim=-1).indices
        shares = scores.gather(-1, chosen)
        if shape.normalized:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be zero
        return shares * shape.scale, chosen

    def _in_groups(self, ranks: Tensor) -> Tensor:
        """Ranks [tokens, experts], lowest outside of each token's groups."""
        shape = self._shape
        grouped = ranks.view(len(ranks), shape.groups, -1)
        voices = grouped.topk(self._heard, dim=-1).values.sum(-1)
        best = voices.topk(shape.groups_per_token, dim=-1).indices
        outside = torch.ones_like(voices, dtype=torch.bool).scatter_(-1, best, False)
        return grouped.masked_fill(outside[..., None], -torch.inf).flatten(1)
