"""Which blocks of a mixture a token goes to, and how much each of them counts, in plain PyTorch.

scores    softmax or sigmoid of what the router says of each block
ranks     the scores, corrected where a family does so: they choose, and are then forgotten
groups    of blocks, of which those with the best ranks are looked at (DeepSeek-V2, section 2.1.2)
shares    the scores of the chosen, made to add up to 1 where a family does so
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Routing

SCORES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": partial(torch.softmax, dim=-1),
    "sigmoid": torch.sigmoid,
}


class PlainRoute:
    """See `Route`."""

    def __init__(self, routing: Routing, correction: Tensor | None) -> None:
        self._routing, self._correction = routing, correction
        self._score = SCORES[routing.scores]

    def __call__(self, said: Tensor) -> tuple[Tensor, Tensor]:
        routing, scores = self._routing, self._score(said)
        ranks = scores if self._correction is None else scores + self._correction
        if routing.groups > 1:
            ranks = self._in_groups(ranks)
        chosen = ranks.topk(routing.per_token, dim=-1).indices
        shares = scores.gather(-1, chosen)
        if routing.normalized:
            shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be zero
        return shares * routing.scale, chosen

    def _in_groups(self, ranks: Tensor) -> Tensor:
        """Ranks [tokens, blocks], lowest outside of each token's groups."""
        routing = self._routing
        grouped = ranks.view(len(ranks), routing.groups, -1)
        voices = grouped.topk(routing.heard, dim=-1).values.sum(-1)
        best = voices.topk(routing.groups_per_token, dim=-1).indices
        outside = torch.ones_like(voices, dtype=torch.bool).scatter_(-1, best, False)
        return grouped.masked_fill(outside[..., None], -torch.inf).flatten(1)
