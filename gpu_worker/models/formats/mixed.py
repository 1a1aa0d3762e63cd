"""Checkpoints with products of several formats. The tensors of a product say which one it has."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_worker.models.formats.format import Format, Tensors
from gpu_worker.models.formats.stored import QuantizedWeight


@dataclass(frozen=True, slots=True)
class MixedFormat:
    """See `Format`."""

    name: str
    formats: Sequence[Format]
    """Each takes no product of another for its own."""

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(end for each in self.formats for end in each.ends))

    def weight(self, product: str, tensors: Tensors) -> QuantizedWeight | None:
        found = (each.weight(product, tensors) for each in self.formats)
        return next((weight for weight in found if weight is not None), None)
