"""The adapters of a worker, laid out beside the products of a decoder while that is made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Absorbed, Gated, Linear
from gpu_worker.models.adapters.adapter import Adapter, Factors, read_adapter
from gpu_worker.models.adapters.gguf_rows import in_gguf_order
from gpu_worker.models.adapters.products import (
    AbsorbedAddition,
    AdaptedAbsorbed,
    AdaptedGated,
    AdaptedLinear,
    Addition,
    PlacedFactors,
    StepAdapters,
)
from gpu_worker.models.adapters.trace import Source, Trace, TracingKernels, traced
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.families.family import Names
from gpu_worker.models.weights import Weights

MakeLayer = Callable[[Weights, Kernels], object]


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The adapters that a worker is to serve."""

    directories: Mapping[str, Path]
    """By the name of the adapter."""
    kernels: Kernels
    """A back end of plain weights, which multiplies with factors."""

    def read(self, config: ModelConfig, gguf: bool) -> "Adapters":
        """Read them all, for a model of this configuration. `gguf`: it is in GGUF files.

        Raises `ModelError`.
        """
        family = config.family
        found = [read_adapter(name, path, family) for name, path in self.directories.items()]
        if gguf:
            found = [in_gguf_order(each, config) for each in found]
        return Adapters(found, family.names, self.kernels)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of a tensor are in a product."""

    source: Source
    rows: Tensor
    """int64 [rows]: of the product."""
    own: Tensor
    """int64 [rows]: the tensor's own numbers of these."""
    scales: Tensor
    """float32 [rows, 1]."""


class Adapters:
    """Adapters in the order of their numbers, from 1. Number 0 is the model itself."""

    def __init__(self, adapters: Sequence[Adapter], names: Names, kernels: Kernels) -> None:
        """`names`: of the model's tensors. `kernels`: see `AdapterFiles`."""
        self.names = tuple(each.name for each in adapters)
        self.step = StepAdapters()
        self.nbytes = 0
        """Bytes of all factors, as they lie in memory."""
        self._adapters = dict(enumerate(adapters, 1))
        self._bare = names.bare
        self._kernels = kernels
        self._unplaced = {number: dict(each.factors) for number, each in self._adapters.items()}

    def beside(self, kernels: Kernels, make: MakeLayer, weights: Weights) -> Kernels:
        """The back end with which `make` is to make a layer of `weights`. Raises `ModelError`."""
        trace = Trace()
        make(traced(weights, trace), TracingKernels(trace))
        placed = (self._beside(rows, trace.sources, weights) for rows in trace.products)
        # It has whatever else `kernels` has.
        return cast(Kernels, _LayerKernels(kernels, placed, self._kernels, self.step))

    def check(self) -> None:
        """To be called when all layers are made. Raises `ModelError` if factors belong to no product."""
        adapters, self._adapters = self._adapters, {}  # their files are not needed any more
        for number, rest in self._unplaced.items():
            for name, factors in rest.items():
                what = "Quire computes no product of this name with adapters"
                if ".experts" in name:
                    what = "adapters of experts are not supported"
                elif name.endswith(("lm_head", "embed_tokens", "wte", "embed_out")):
                    what = "adapters of the head and of embeddings are not supported"
                raise ModelError(f"{adapters[number].path}: tensor {factors.key}: {what}")

    def _beside(
        self, rows: Tensor, sources: Mapping[str, Source], weights: Weights
    ) -> dict[int, PlacedFactors]:
        """The factors of each adapter beside a product, by number. `rows`: as in `Trace.products`."""
        found_at = ((self._bare(name), _place(rows, source)) for name, source in sources.items())
        places = {name: place for name, place in found_at if place}
        found = dict[int, PlacedFactors]()
        for number, adapter in self._adapters.items():
            names = [name for name in places if name in adapter.factors]
            for name in names:
                _check(adapter, places[name].source, adapter.factors[name], name)
                self._unplaced[number].pop(name, None)
            if names:
                parts = [(places[name], adapter.factors[name]) for name in names]
                found[number] = self._placed(parts, len(rows), weights)
        return found

    def _placed(self, parts: Sequence[tuple[_Place, Factors]], rows: int, weights: Weights) -> PlacedFactors:
        """The factors of all parts of a product, which has this number of rows."""
        down = torch.cat([factors.down[:, place.source.columns].float() for place, factors in parts])
        up, first = torch.zeros(rows, len(down)), 0
        for place, factors in parts:
            end = first + factors.up.shape[1]
            up[place.rows, first:end] = factors.up[place.own].float() * factors.scale * place.scales
            first = end
        down, up = (each.to(weights.device, weights.dtype) for each in (down, up))
        self.nbytes += down.nbytes + up.nbytes
        return PlacedFactors(down, up)


class _LayerKernels:
    """See `Kernels`. Products have beside them the factors that are theirs, in their order."""

    def __init__(
        self,
        kernels: Kernels,
        placed: Iterator[dict[int, PlacedFactors]],
        plain: Kernels,
        step: StepAdapters,
    ) -> None:
        """`plain`: multiplies with factors."""
        self._kernels, self._placed, self._plain, self._step = kernels, placed, plain, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        product, additions = self._kernels.linear(weight, bias, dtype, keeps_rows), self._additions()
        return AdaptedLinear(product, additions, self._step) if additions else product

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        product, additions = self._kernels.gated(weight, bias, activation), self._additions()
        return AdaptedGated(product, additions, self._step) if additions else product

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        product, (heads, key_size, _) = self._kernels.absorbed(up_key, up_value), up_key.shape
        placed = next(self._placed).items()
        additions = {number: AbsorbedAddition(each, heads, key_size, self._plain) for number, each in placed}
        return AdaptedAbsorbed(product, additions, self._step) if additions else product

    def _additions(self) -> dict[int, Addition]:
        """What adapters add to the next product, by their numbers."""
        return {number: Addition.of(each, self._plain) for number, each in next(self._placed).items()}


def _place(rows: Tensor, source: Source) -> _Place | None:
    """The rows of a product that are of a tensor. None: there are none. `rows`: as in `Trace.products`."""
    (mine,) = torch.where((rows >= source.begin) & (rows < source.begin + source.rows))
    if not len(mine):
        return None
    own = rows[mine] - source.begin
    return _Place(source, mine, own, source.scales[own, None])


def _check(adapter: Adapter, source: Source, factors: Factors, name: str) -> None:
    """Raise `ModelError` unless the factors have the shape of the tensor that they belong to."""
    found = factors.up.shape[0], factors.down.shape[1]
    if found != (source.rows, source.inputs):
        what = f"it is for a weight {list(found)}, the model's {name} is {[source.rows, source.inputs]}"
        raise ModelError(f"{adapter.path}: tensor {factors.key}: {what}")
