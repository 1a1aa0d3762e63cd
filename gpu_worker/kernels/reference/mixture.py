"""A mixture of feed-forward blocks, one block after the other, of whatever products a back end has.

Tokens are grouped by block, so that a block's weights are read once for all of them. How many a block gets is
known on the device first: a GPU would have to be waited for here, in every layer.
"""

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels


class OneByOne:
    """See `Mixture`."""

    def __init__(self, kernels: Kernels, blocks: Iterable[tuple[Tensor, Tensor]], activation: str) -> None:
        self._blocks = [(kernels.gated(up, None, activation), kernels.linear(down)) for up, down in blocks]

    def __call__(self, hidden: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """A token's blocks are added up in the order of their numbers."""
        per_token = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self._blocks)).tolist()
        sums = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for (inner, down), count, end in zip(self._blocks, counts, accumulate(counts), strict=True):
            if count:
                places = order[end - count : end]
                tokens = places // per_token
                result = down(inner(hidden[tokens]))
                sums.index_add_(0, tokens, result * shares.flatten()[places, None])
        return sums
