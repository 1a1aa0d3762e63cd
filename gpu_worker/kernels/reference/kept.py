"""Weights that a checkpoint has in 4 or 8 bits stay so, and others stay plain.

`KeptWeights` stands before a back end of plain weights. Each weight goes to the back end of its type: of int4
or fp4 if it is a `ScaledWeight`, of int8 or fp8 if it is a `ByteWeight`, of codes if it is a `CodedWeight`.
Products round activations where those back ends do.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import ByteWeight, Gated, Linear, ScaledWeight
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.reference.int4 import Int4Reference, Int4Weights
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8

Kind = Literal["int4", "fp4", "int8", "fp8", "fp8 groups", "coded"]

FOUR_BITS: frozenset[Kind] = frozenset(("int4", "fp4"))
"""Types of `ScaledWeight`."""
NARROW: frozenset[Kind] = FOUR_BITS | {"fp8 groups"}
"""Types of which back ends have no head."""
BYTES: Mapping[torch.dtype, Kind] = {torch.int8: "int8", FP8: "fp8"}
"""Names of the types of `ByteWeight`."""


def kind_of(weight: Tensor) -> Kind | None:
    """The type that a weight has in its checkpoint. None: it is plain, or not known."""
    if isinstance(weight, ScaledWeight):
        return weight.kind
    if isinstance(weight, CodedWeight):
        return "coded"
    return BYTES[weight.kind] if isinstance(weight, ByteWeight) else None


class KeptWeights:
    """See the module."""

    kept: Mapping[Kind, Kernels]
    """Back ends of weights that are kept, by their type."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        other = self.back_end_of(weight)
        # Back ends of 4 bits have no such products with wide results or rows.
        wide = kind_of(weight) in FOUR_BITS and (dtype == torch.float32 or keeps_rows)
        if other is None or wide:
            plain: Linear = super().linear(weight, bias, dtype, keeps_rows)  # type: ignore[misc]
            return plain
        return other.linear(weight, bias, dtype, keeps_rows)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        other = self.back_end_of(weight)
        if other is None:
            plain: Gated = super().gated(weight, bias, activation)  # type: ignore[misc]
            return plain
        return other.gated(weight, bias, activation)

    def back_end_of(self, weight: Tensor) -> Kernels | None:
        """The back end that keeps a weight as it is. None: none does."""
        kind = kind_of(weight)
        if kind == "coded" and kind not in self.kept:
            kind = "fp8 groups"
        return None if kind is None else self.kept.get(kind)


class KeptReference(KeptWeights, ReferenceKernels):
    """See `Kernels`."""

    def __init__(self) -> None:
        self.kept = {
            "int4": Int4Reference(),
            "int8": QuantizedReference(torch.int8),
            "fp8": QuantizedReference(FP8),
            "coded": CodedReference(),
        }


def kinds_kept(kernels: Kernels) -> frozenset[Kind]:
    """Types of a checkpoint's weights that a back end keeps."""
    if isinstance(kernels, KeptWeights):
        return frozenset(kernels.kept)
    return frozenset(("int4",)) if isinstance(kernels, Int4Weights) else frozenset()
