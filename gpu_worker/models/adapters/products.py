"""Products to whose results the adapters of a step's tokens are added.

    tokens of the step     0 1 2 3 4 5 6 7
    adapter of each        - - a a b - - b         a: [2, 3], b: [4, 7]
    y = product(x);   y[a] += up_a(down_a(x[a]));   y[b] += up_b(down_b(x[b]))

All adapters are beside one product, whose weights are read once for all tokens. A step without adapters
calls the product and nothing else, so that it can be recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Absorbed, Gated, Linear
from gpu_worker.machine.transfer import indices

Product = TypeVar("Product")
Added = TypeVar("Added")
Group = tuple[int, Tensor | slice]
"""Number of an adapter, and the tokens of the step that have it, int64 [tokens]."""


class StepAdapters:
    """The adapters of the tokens of the step that is computed."""

    def __init__(self) -> None:
        self.groups: Sequence[Group] = ()
        """Those that some tokens have."""

    @contextmanager
    def of(self, numbers: Int32s, device: torch.device) -> Iterator[None]:
        """Within `with` tokens have these adapters. `numbers`: int32 [tokens]; 0: none."""
        self.groups = [
            (number, _places(np.flatnonzero(numbers == number), device))
            for number in np.unique(numbers).tolist()
            if number
        ]
        try:
            yield
        finally:
            self.groups = ()


def _places(tokens: "np.ndarray[tuple[int], np.dtype[np.intp]]", device: torch.device) -> Tensor | slice:
    """Tokens side by side need not be copied."""
    first, end = int(tokens[0]), int(tokens[-1]) + 1
    return slice(first, end) if end - first == len(tokens) else indices(tokens, device)


@dataclass(frozen=True, slots=True)
class PlacedFactors:
    """The factors of one adapter beside one product, in the type of the activations."""

    down: Tensor
    """[ranks, in]: of all parts of the product, one after the other."""
    up: Tensor
    """[out, ranks], with the adapter's scale. Zero where rows and ranks are of different parts."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What one adapter adds to the results of one product."""

    down: Linear
    """From the product's inputs to the ranks of all its parts."""
    up: Linear
    """From these to the product's results, in float32."""

    @classmethod
    def of(cls, factors: PlacedFactors, kernels: Kernels) -> Self:
        """`kernels`: a back end of plain weights."""
        return cls(kernels.linear(factors.down), kernels.linear(factors.up, dtype=torch.float32))

    def add_to(self, hidden: Tensor, out: Tensor, tokens: Tensor | slice) -> None:
        """Add what the adapter adds for some tokens of hidden [tokens, in] to these of out [tokens, out]."""
        ranks = self.down(hidden[tokens])
        if isinstance(tokens, slice) and out.dtype == torch.float32:
            self.up.add_to(ranks, out[tokens])  # without a result beside it
        else:
            out[tokens] += self.up(ranks)


class AbsorbedAddition:
    """What one adapter adds where weights of latent attention are absorbed."""

    def __init__(self, factors: PlacedFactors, heads: int, key_size: int, kernels: Kernels) -> None:
        """`kernels`: a back end of plain weights."""
        up = factors.up.view(heads, -1, factors.up.shape[1])
        self._absorbed = kernels.absorbed(up[:, :key_size], up[:, key_size:].mT)
        self._to_rows, self._to_ranks = kernels.linear(factors.down.T), kernels.linear(factors.down)

    def queries(self, plain: Tensor) -> Tensor:
        """See `Absorbed.queries`."""
        ranks = self._absorbed.queries(plain)
        return self._to_rows(ranks.reshape(-1, ranks.shape[2])).view(*ranks.shape[:2], -1)

    def values(self, mixed: Tensor) -> Tensor:
        """See `Absorbed.values`."""
        ranks = self._to_ranks(mixed.reshape(-1, mixed.shape[2]))
        return self._absorbed.values(ranks.view(*mixed.shape[:2], -1))


class _Adapted(Generic[Product, Added]):
    """A product, and what some adapters add to its results."""

    def __init__(self, product: Product, additions: Mapping[int, Added], step: StepAdapters) -> None:
        """`additions`: by the adapter's number."""
        self._product, self._additions, self._step = product, additions, step

    def _groups(self) -> list[tuple[Added, Tensor | slice]]:
        """Those of the step whose adapters add something here."""
        every = self._additions
        return [(every[number], tokens) for number, tokens in self._step.groups if number in every]


class AdaptedAbsorbed(_Adapted[Absorbed, AbsorbedAddition]):
    """See `Absorbed`."""

    def queries(self, plain: Tensor) -> Tensor:
        out = self._product.queries(plain)
        for addition, tokens in self._groups():
            out[tokens] += addition.queries(plain[tokens])
        return out

    def values(self, mixed: Tensor) -> Tensor:
        out = self._product.values(mixed)
        for addition, tokens in self._groups():
            out[tokens] += addition.values(mixed[tokens])
        return out


class AdaptedLinear(_Adapted[Linear, Addition]):
    """See `Linear`."""

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self._product(hidden)
        self._add(hidden, out)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        self._product.add_to(hidden, residual)
        self._add(hidden, residual)

    def rows(self, numbers: Tensor) -> Tensor:
        return self._product.rows(numbers)

    def _add(self, hidden: Tensor, out: Tensor) -> None:
        for addition, tokens in self._groups():
            addition.add_to(hidden, out, tokens)


class AdaptedGated(_Adapted[Gated, Addition]):
    """See `Gated`."""

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.activated(self.parts(hidden)) if self._groups() else self._product(hidden)

    def parts(self, hidden: Tensor) -> Tensor:
        parts = self._product.parts(hidden)
        for addition, tokens in self._groups():
            addition.add_to(hidden, parts, tokens)
        return parts

    def activated(self, parts: Tensor) -> Tensor:
        return self._product.activated(parts)
