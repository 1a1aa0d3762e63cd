"""What is seen in images, as decoders read it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen in one image, or in several, one after the other."""

    vectors: Tensor
    """[n, hidden_size]: in place of the embeddings of n tokens."""
    deeper: tuple[Tensor, ...] = ()
    """What is added at these tokens behind the first layer, the second one and so on (DeepStack, Meng et al.
    2024); each as `vectors`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen in one step."""

    tokens: Tensor
    """int64 [n]: which tokens of the step see something."""
    sight: Sight
    """What they see."""

    def put(self, embedded: Tensor) -> None:
        """Put it in place of these tokens' embeddings, among those of the step [tokens, hidden_size]."""
        embedded[self.tokens] = self.sight.vectors.to(embedded.dtype)
