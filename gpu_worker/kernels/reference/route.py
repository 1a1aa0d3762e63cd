"""Top-k routing of tokens to experts, in plain PyTorch.

router logits       one number of the router for each expert
scores              softmax or sigmoid of the router logits
corrected scores    scores + score_correction_bias; they select experts, and have no other use
selected experts    the experts_per_token best by corrected score, among the experts of the token's groups
routing weights     scores of the selected experts, divided by their sum if asked, times a factor

With groups (DeepSeek-V2, arXiv:2405.04434, section 2.1.2) a token first selects the best groups of experts.
Experts of other groups are not selected.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.products import Routing

SCORING: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}
"""By `Routing.scoring_func`: router logits [tokens, experts] to scores of the same shape."""


class ReferenceRoute:
    """See `Route`."""

    def __init__(self, routing: Routing, score_correction_bias: Tensor | None) -> None:
        self._routing, self._score_correction_bias = routing, score_correction_bias
        self._score = SCORING[routing.scoring_func]

    def __call__(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        routing, scores = self._routing, self._score(router_logits)
        corrected = scores if self._score_correction_bias is None else scores + self._score_correction_bias
        if routing.num_groups > 1:
            corrected = self._within_groups(corrected)
        selected_experts = corrected.topk(routing.experts_per_token, dim=-1).indices
        routing_weights = scores.gather(-1, selected_experts)
        if routing.normalized:
            # A sum of sigmoids may be zero.
            routing_weights = routing_weights / (routing_weights.sum(-1, keepdim=True) + 1e-20)
        return routing_weights * routing.scale, selected_experts

    def _within_groups(self, scores: Tensor) -> Tensor:
        """Scores [tokens, experts], -inf for experts outside of each token's top-k groups."""
        routing = self._routing
        by_group = scores.view(len(scores), routing.num_groups, -1)
        group_scores = by_group.topk(routing.group_top_k, dim=-1).values.sum(-1)
        top_groups = group_scores.topk(routing.top_k_groups, dim=-1).indices
        outside = torch.ones_like(group_scores, dtype=torch.bool).scatter_(-1, top_groups, False)
        return by_group.masked_fill(outside[..., None], -torch.inf).flatten(1)
