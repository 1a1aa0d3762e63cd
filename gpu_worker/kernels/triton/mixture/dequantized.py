"""Experts with weights of few bits: they are dequantized if many pairs are multiplied with them.

few pairs an expert    a kernel widens weights in registers: bound by reading the weights
more                   some experts at a time are dequantized for `multiply_tiles`: bound by arithmetic
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.products import Clamped
from gpu_worker.kernels.triton.mixture.mixture import ExpertWeights, Own, multiply
from gpu_worker.kernels.triton.mixture.pairs import RoutedPairs
from gpu_worker.kernels.triton.norm import gated_product, squared

DEQUANTIZED_PAIRS = 192
"""Pairs of an expert, on average, from which on experts are dequantized."""
UNPACKED_PAIRS = 64
"""Pairs of the largest tile of experts that are not."""
AT_ONCE_BYTES = 512 << 20
"""Of the experts that are dequantized at a time."""


@triton.jit
def leave_outputs(
    sums,
    ups,
    biases,
    outs,
    wanted,
    alpha,
    limit,
    routing_weights,
    pairs,
    real,
    out,
    targets,
    OUTPUTS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Store the results of a tile from its sums [outputs, pairs]. With an ACTIVATION these are of gates, and
    `ups` are beside them; if it is relu2, they are of ups. `biases`: the expert's."""
    GATED: tl.constexpr = (ACTIVATION != "") & (ACTIVATION != "relu2")
    if biases is not None:
        sums += tl.load(biases + outs, mask=wanted, other=0.0).to(tl.float32)[:, None]
        if GATED:
            ups += tl.load(biases + OUTPUTS + outs, mask=wanted, other=0.0).to(tl.float32)[:, None]
    if GATED:
        sums = gated_product(sums, ups, alpha, limit, ACTIVATION)
    elif ACTIVATION != "":
        sums = squared(sums)
    else:
        sums = sums * tl.load(routing_weights + pairs, mask=real, other=0.0)
    results = out + targets * OUTPUTS + outs[:, None]
    tl.store(results, sums.to(out.dtype.element_ty), mask=real & wanted[:, None])


class DequantizedWeights(ExpertWeights):
    """See the module."""

    _shape: tuple[int, int]
    _dtype: torch.dtype
    """Of the dequantized weights."""

    def __init__(self, count: int) -> None:
        super().__init__(count, None)

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    def tile_rows(self, pairs: int, hidden: Tensor) -> int:
        rows = super().tile_rows(pairs, hidden)
        return rows if pairs >= DEQUANTIZED_PAIRS * self._count else min(UNPACKED_PAIRS, rows)

    def multiply(
        self, rows: Tensor, routed: RoutedPairs, out: Tensor, activation: str | Clamped | None
    ) -> None:
        if routed.rows <= UNPACKED_PAIRS:
            self._multiply(rows, routed, out, activation)
            return
        for first, own in self._dequantized():
            multiply(rows, routed, out, activation, own, first)

    @abstractmethod
    def _multiply(
        self, rows: Tensor, routed: RoutedPairs, out: Tensor, activation: str | Clamped | None
    ) -> None:
        """As `multiply`, without dequantizing experts."""

    @abstractmethod
    def _dequantize(self, some: slice, matrices: Tensor) -> None:
        """Fill `matrices` with the weights of some experts."""

    def _dequantized(self) -> Iterator[tuple[int, Own]]:
        """Some experts at a time: the first one's number, and what they have."""
        out, size = self._shape
        most = max(1, AT_ONCE_BYTES // (out * size * self._dtype.itemsize))
        room = torch.empty((min(most, self._count), out, size), dtype=self._dtype, device=self.weights.device)
        for first in range(0, self._count, most):
            some = slice(first, min(first + most, self._count))
            matrices = room[: some.stop - first]
            self._dequantize(some, matrices)
            yield first, (matrices, None, None if self.biases is None else self.biases[some])
