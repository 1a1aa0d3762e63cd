"""What is seen in images, as decoders read it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one image, or in several, one after the other."""

    vectors: Tensor
    """[n, hidden_size]: in place of the embeddings of n tokens."""
    deeper: tuple[Tensor, ...] = ()
    """What is added at these tokens behind the first layer, the second one and so on (DeepStack, Meng et al.
    2024); each as `vectors`."""

    def to(self, device: torch.device) -> "Sight":
        """The same in a device's memory."""
        return Sight(self.vectors.to(device), tuple(each.to(device) for each in self.deeper))


@dataclass(frozen=True, slots=True)
class Ahead:
    """What tokens of images have before them that is seen together. On the host, int64 [n] each."""

    tokens: NDArray[np.int64]
    """Which tokens of the step they are."""
    positions: NDArray[np.int64]
    """Their positions in their sequences."""
    counts: NDArray[np.int64]
    """Tokens of the same image that are behind each of them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen in one step."""

    tokens: Tensor
    """int64 [n]: which tokens of the step see something."""
    sight: Sight
    """What they see."""
    ahead: Ahead | None = None
    """None: none of them sees another one that is behind it."""

    def put(self, embedded: Tensor) -> None:
        """Put it in place of these tokens' embeddings, among those of the step [tokens, hidden_size]."""
        embedded[self.tokens] = self.sight.vectors.to(embedded.dtype)
