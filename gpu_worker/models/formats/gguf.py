"""Weights of GGUF files: rows of blocks. A tensor's name ends with the type, such as `weight.Q4_K`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.codes import Codes, halved, narrowed
from gpu_worker.kernels.products import GROUP
from gpu_worker.models.formats.format import Tensors
from gpu_worker.models.formats.gguf_blocks import dequantized, parts_of, scales_and_shifts
from gpu_worker.models.formats.stored import half_scales
from gpu_worker.models.values import Values
from ops.model_directory.gguf.file import PLAIN, TYPES

SIZES = {kind: (weights, octets) for kind, weights, octets in TYPES.values() if kind not in PLAIN}
"""Weights and bytes of a block, by the name of its type."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """See `Format`."""

    name: str = "gguf"
    ends: tuple[str, ...] = tuple(f"weight.{kind}" for kind in SIZES)

    def weight(self, product: str, tensors: Tensors) -> "GgufWeight | None":
        for kind in SIZES:
            if (rows := tensors.get(f"weight.{kind}")) is not None:
                if rows.dim() != 2:
                    raise ModelError(f"tensor {product}weight has {rows.dim()} dimensions")
                return GgufWeight(kind, rows)
        return None


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """See `QuantizedWeight`."""

    kind: str
    """Type of the blocks, of `SIZES`."""
    stored: Tensor
    """Rows of blocks, uint8 [out, bytes]."""

    @property
    def shape(self) -> tuple[int, int]:
        weights, octets = SIZES[self.kind]
        return len(self.stored), self.stored.shape[1] // octets * weights

    @property
    def shift_size(self) -> int:
        return GROUP

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        weights, _ = SIZES[self.kind]
        first = columns.start // weights
        blocks = self._blocks(rows, first, -(-columns.stop // weights), device)
        found = dequantized(self.kind, blocks).view(rows.stop - rows.start, -1)
        return found[:, columns.start - first * weights : columns.stop - first * weights]

    def int4_scales(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        weights, _ = SIZES[self.kind]
        if columns.start % GROUP or (columns.stop % GROUP and columns.stop < self.shape[1]):
            return None
        first = columns.start // weights
        blocks = self._blocks(rows, first, -(-columns.stop // weights), torch.device("cpu"))
        if (found := scales_and_shifts(self.kind, blocks)) is None:
            return None
        count = rows.stop - rows.start
        groups = slice((columns.start - first * weights) // GROUP, (columns.stop - first * weights) // GROUP)
        scales, shifts = (each.reshape(count, -1)[:, groups] for each in found)
        return scales, shifts[:, :0] if self.kind == "Q4_0" else shifts

    def fp4_scales(self, rows: slice, columns: slice) -> Tensor | None:
        if self.kind != "MXFP4" or columns.start % GROUP:
            return None
        blocks = self._blocks(rows, columns.start // GROUP, -(-columns.stop // GROUP), torch.device("cpu"))
        parts = parts_of(self.kind, blocks)
        scales = parts.scales.view(rows.stop - rows.start, -1)
        # Number 8 is -0.
        return half_scales(scales, lambda: (parts.numbers % 8).view(len(scales), -1))

    @property
    def has_fp8_groups(self) -> bool:
        return False

    def byte_scales(self, rows: slice) -> None:
        """Blocks have scales of their own."""

    def codes(self, rows: slice, columns: slice) -> Codes | None:
        weights, _ = SIZES[self.kind]
        first, count = columns.start // weights, rows.stop - rows.start
        parts = parts_of(
            self.kind, self._blocks(rows, first, -(-columns.stop // weights), torch.device("cpu"))
        )
        size = weights // parts.scales.shape[1]
        start, stop = columns.start - first * weights, columns.stop - first * weights
        if start % size:
            return None
        groups = slice(start // size, -(-stop // size))
        numbers = parts.numbers.reshape(count, -1)[:, start:stop]

        def of_groups(each: Tensor) -> Tensor:
            return each.reshape(count, -1)[:, groups]

        if parts.factors is None or start:
            scales, factors = narrowed(of_groups(parts.whole_scales()))
            shifts = None if (whole := parts.whole_shifts()) is None else halved(of_groups(whole))
            shift_factors, span = None, 0
        else:  # of whole blocks, and all else are whole numbers of 8 bits
            scales, factors = of_groups(parts.scales).to(torch.int8), parts.factors.view(count, -1)
            shifts = None if parts.shifts is None else of_groups(parts.shifts).to(torch.int8)
            shift_factors = None if parts.shift_factors is None else parts.shift_factors.view(count, -1)
            span = weights
        return Codes(
            numbers if parts.levels is not None else numbers.view(torch.uint8),
            size,
            scales,
            "int8" if parts.levels is None else "table",
            None if parts.levels is None else torch.tensor(parts.levels),
            shifts,
            factors,
            span,
            shift_factors=shift_factors,
        )

    def _blocks(self, rows: slice, first: int, last: int, device: torch.device) -> Tensor:
        """Blocks `first` to `last` of rows, uint8 [blocks, bytes]."""
        octets = SIZES[self.kind][1]
        return self.stored[rows, first * octets : last * octets].to(device).reshape(-1, octets)


def read_gguf(values: Values) -> GgufFormat:
    """The tensors say by their names how they are quantized."""
    return GgufFormat()
