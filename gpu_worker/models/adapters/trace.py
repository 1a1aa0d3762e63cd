"""Which rows of which tensors the products of a layer have.

A layer merges projections, reorders their rows, and takes one rank's part of them. Factors of an adapter have
to follow. So the layer is made twice. The first time each tensor is numbers of its rows in place of weights,
and the products are kept instead of being laid out:

    q_proj  0 1 2 3     k_proj  4 5     v_proj  6 7
    product             0 2 1 3 4 5 6 7                  with queries in the order that kernels rotate
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from gpu_worker.kernels.products import Absorbed, Clamped, Expert, Gated, Linear, Mixture
from gpu_worker.kernels.reference.absorbed import ReferenceAbsorbed
from gpu_worker.kernels.reference.kernels import ReferenceGated, ReferenceKernels, ReferenceLinear
from gpu_worker.models.weights import Weights

CPU = torch.device("cpu")
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor [out, in] that a layer has read."""

    begin: int
    """Number of its first row."""
    rows: int
    """Rows of the whole tensor."""
    inputs: int
    """Columns of the whole tensor."""
    columns: slice
    """Those that this rank has."""
    scales: Tensor
    """float32 [rows]: what the layer multiplies each row by."""


@dataclass(slots=True)
class Trace:
    """The tensors of one layer, and its products."""

    sources: dict[str, Source] = field(default_factory=dict)
    """By name, without `.weight`."""
    products: list[Tensor] = field(default_factory=list)
    """int64 [out] each: numbers of rows, in the order in which products are made. Those of absorbed weights
    are head after head, as in their tensor."""
    _next: int = 0

    def numbers(
        self,
        name: str,
        rows: int,
        inputs: int,
        columns: slice,
        taken: Sequence[slice],
        scales: Sequence[float],
    ) -> Tensor:
        """int64 [rows taken]: numbers of slices of a tensor's rows. `scales`: of each slice."""
        source = self.sources.get(name)
        if source is None:
            source = Source(self._next, rows, inputs, columns, torch.ones(rows))
            self.sources[name], self._next = source, self._next + rows
        for each, scale in zip(taken, scales, strict=True):
            source.scales[each] = scale
        first = source.begin
        return torch.cat([torch.arange(first + each.start, first + each.stop) for each in taken])


@dataclass(frozen=True, slots=True)
class TracedWeights(Weights):
    """Gives numbers of rows [rows, 1] in place of matrices. Everything else is zero."""

    trace: Trace = field(default_factory=Trace)

    def _merge(
        self,
        parts: Sequence[tuple[str, int, Sequence[slice]]],
        rest: tuple[int, ...],
        columns: slice = slice(None),
    ) -> Tensor:
        """See `Weights._merge`."""
        if len(rest) != 1 or not all(name.endswith(_WEIGHT) for name, _, _ in parts):
            count = sum(rows.stop - rows.start for _, _, taken in parts for rows in taken)
            return torch.zeros(count, *(len(range(each)[columns]) for each in rest))
        numbers = [
            self.trace.numbers(
                (self.prefix + name).removesuffix(_WEIGHT),
                whole,
                rest[0],
                columns,
                taken,
                self._factors(name) or (1.0,) * len(taken),
            )
            for name, whole, taken in parts
        ]
        return torch.cat(numbers)[:, None]


def traced(weights: Weights, trace: Trace) -> TracedWeights:
    """The same tensors, noted in `trace`."""
    given = {each.name: getattr(weights, each.name) for each in fields(Weights)}
    return TracedWeights(**(given | {"device": CPU}), trace=trace)


class TracingKernels(ReferenceKernels):
    """Keeps the rows of products. Experts are not read."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        self._trace.products.append(weight[:, 0])
        return ReferenceLinear(weight, bias, torch.float32)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        self._trace.products.append(weight[:, 0])
        return ReferenceGated(ReferenceLinear(weight, bias, weight.dtype), activation)

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        self._trace.products.append(torch.cat((up_key[..., 0], up_value[:, 0]), dim=1).flatten())
        return ReferenceAbsorbed(up_key, up_value)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        return _no_experts


def _no_experts(hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor) -> Tensor:
    raise NotImplementedError
