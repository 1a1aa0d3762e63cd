"""What a model needs of the ranks that it is split among."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """The ranks of a worker, as one of them sees them. All of them make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def count(self) -> int:
        """Number of ranks."""

    def sum(self, tensor: Tensor) -> Tensor:
        """All-reduce: add up the ranks' tensors, in place. Returns the same tensor."""

    def gather(self, tensor: Tensor) -> Tensor:
        """All-gather: the ranks' tensors [rows, n] side by side, in the ranks' order: [rows, count * n]."""

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers."""

    def count_replay(self) -> None:
        """A recorded step has been replayed. No other method is called for its exchanges."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A worker of one rank. See `Ranks`."""

    rank: int = 0
    count: int = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def least(self, number: int) -> int:
        return number

    def count_replay(self) -> None:
        pass


ALONE = Alone()
