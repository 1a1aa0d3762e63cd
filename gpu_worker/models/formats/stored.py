"""A quantized weight as a checkpoint stores it, and the plain formula that dequantizes it.

    weight[o, i]  =  (numbers[o, i] - zeros[block]) * scales[block]

A block is a rectangle of the weight that shares a scale: the whole weight (per tensor), an output (per
channel), some inputs of an output (per group), or a square of outputs and inputs. With an order of groups
(`g_idx` of GPTQ, from "activation order") the inputs of a group need not lie beside each other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.errors import ModelError
from gpu_worker.kernels.codes import UNIT, Codes, narrowed
from gpu_worker.kernels.products import FP4, GROUP
from gpu_worker.kernels.reference.rows import FP8

PIECE = 1 << 18
"""Weights that a CPU dequantizes at a time: their float32 copies, 1 MiB each, stay in its caches."""
DEVICE_PIECE = 1 << 24
"""Weights that another device dequantizes at a time: their float32 copies take 64 MiB each."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Numbers as `Codes` have them."""

    numbers: Tensor
    """A byte each, uint8."""
    kind: Literal["table", "int8", "fp8"]
    table: Tensor | None = None
    """See `Codes`."""
    missing: int = 0
    """What the values of these numbers are smaller by."""


class Numbers(Protocol):
    """The numbers of a weight [out, in]."""

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""

    @property
    def limits(self) -> tuple[int, int] | None:
        """The lowest and the highest number, if all are whole."""

    @property
    def table(self) -> Tensor | None:
        """The numbers that bits mean, if they are places in a table."""

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        """A rectangle of the numbers, of any type, on `device`."""

    def coded(self, rows: slice, columns: slice) -> Coded | None:
        """A rectangle of the numbers. None if `Codes` cannot have them."""


class QuantizedWeight(Protocol):
    """A quantized weight [out, in]."""

    @property
    def shape(self) -> tuple[int, int]:
        """[out, in]."""

    @property
    def shift_size(self) -> int:
        """Inputs that share a shift of `int4_scales`."""

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        """A rectangle of the dequantized weight, float32, on `device`. Bounds of slices are not negative."""

    def int4_scales(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        """Scales of a rectangle as back ends of int4 take them, and shifts of zeros: see `ScaledWeight`.

        None if back ends of int4 cannot keep the weight. Shifts are empty if all are 0.
        """

    def fp4_scales(self, rows: slice, columns: slice) -> Tensor | None:
        """Scales of a rectangle as back ends of fp4 take them: see `ScaledWeight`. None if such cannot keep
        the weight."""

    @property
    def has_fp8_groups(self) -> bool:
        """Whether its codes are of fp8, in groups of `GROUP` inputs or a multiple."""

    def byte_scales(self, rows: slice) -> tuple[Tensor, torch.dtype] | None:
        """The scale of each of some outputs, float32 [rows], and the type of the numbers, int8 or fp8: see
        `ByteWeight`. None if back ends of these types cannot keep the weight.
        """

    def codes(self, rows: slice, columns: slice) -> Codes | None:
        """A rectangle of the weight as codes, on the CPU. None if back ends of codes cannot keep it."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """See `QuantizedWeight`, and the formula above."""

    numbers: Numbers
    scales: Tensor
    """float32 [blocks along out, blocks along in]."""
    block: tuple[int, int]
    """Outputs and inputs of a block."""
    zeros: Tensor | None = None
    """The number that means zero, in the shape of `scales`. None: 0."""
    order: Tensor | None = None
    """Group of each input, int64 [in]. None: groups are consecutive inputs."""
    factor: float = 1.0
    """A scale of the whole weight, which is a part of `scales`: without it they may be numbers of float16."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape

    @property
    def shift_size(self) -> int:
        return self.block[1]

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        numbers = self.numbers.part(rows, columns, device).float()
        down = torch.arange(rows.start, rows.stop) // self.block[0]
        if self.order is None:
            across = torch.arange(columns.start, columns.stop) // self.block[1]
        else:
            across = self.order[columns]
        if self.zeros is not None:
            numbers -= self.zeros[down][:, across].to(device)
        return numbers.mul_(self.scales[down][:, across].to(device))

    def int4_scales(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        # Back ends have 4 bits, a scale of float16 for 32 inputs, and whole groups.
        size, limits = self.block[1], self.numbers.limits
        if limits is None or limits[1] - limits[0] > 15 or self.order is not None:
            return None
        if columns.start % GROUP or (size % GROUP and size < self.shape[1]):
            return None
        down = torch.arange(rows.start, rows.stop) // self.block[0]
        across = torch.arange(columns.start, columns.stop, GROUP) // size
        scales = self.scales[down][:, across]
        if not torch.equal((narrow := scales.half()).float(), scales):
            return None
        lowest, highest = (0.0, 0.0) if self.zeros is None else (self.zeros.min(), self.zeros.max())
        if limits[0] - highest >= -8 and limits[1] - lowest <= 7:
            return narrow, scales.new_empty(len(scales), 0)
        if self.zeros is None or (columns.start % size and size < self.shape[1]):
            return None
        groups = torch.arange(columns.start, columns.stop, size) // size
        shifts = (limits[0] + 8 - self.zeros[down][:, groups]) * self.scales[down][:, groups]
        return narrow, shifts

    def fp4_scales(self, rows: slice, columns: slice) -> Tensor | None:
        table = self.numbers.table
        if table is None or self.zeros is not None or self.order is not None or columns.start % GROUP:
            return None
        if self.block[1] % GROUP or not torch.equal(table, FP4):
            return None
        down = torch.arange(rows.start, rows.stop) // self.block[0]
        scales = self.scales[down][:, torch.arange(columns.start, columns.stop, GROUP) // self.block[1]]
        return half_scales(scales, lambda: self.numbers.part(rows, columns, torch.device("cpu")))

    @property
    def has_fp8_groups(self) -> bool:
        plain = self.zeros is None and self.order is None and self.block[1] % GROUP == 0
        return plain and isinstance(self.numbers, Whole) and self.numbers.weight.dtype == FP8

    def byte_scales(self, rows: slice) -> tuple[Tensor, torch.dtype] | None:
        # Back ends have a scale for each output, no zeros, and no other type of fp8.
        kind = self.numbers.weight.dtype if isinstance(self.numbers, Whole) else None
        if kind not in (torch.int8, FP8) or self.scales.shape[1] > 1:
            return None
        if self.zeros is not None and self.zeros.any():
            return None
        return self.scales[torch.arange(rows.start, rows.stop) // self.block[0], 0], kind

    def codes(self, rows: slice, columns: slice) -> Codes | None:
        size = self.block[1] if columns.start % self.block[1] == 0 else math.gcd(self.block[1], columns.start)
        width = columns.stop - columns.start
        size = min(size, width + -width % UNIT)
        found = self.numbers.coded(rows, columns)
        order = None if self.order is None else self.order.argsort(stable=True)
        if found is None or (order is not None and not self._in_order(order, width)):
            return None
        down = torch.arange(rows.start, rows.stop) // self.block[0]
        across = torch.arange(columns.start, columns.stop, size) // self.block[1]
        scales, table, shifts = self.scales[down][:, across], found.table, None
        if self.zeros is not None:
            zeros = self.zeros[down][:, across] - found.missing
            if table is not None and (self.zeros == self.zeros[0, 0]).all():
                table, zeros = table - self.zeros[0, 0], zeros.new_zeros(1)
            shifts = -zeros * scales if zeros.any() else None
        elif found.missing:
            shifts = found.missing * scales
        narrow, factors = narrowed(scales, self.factor)
        return Codes(
            found.numbers if order is None else found.numbers[:, order],
            size,
            narrow,
            found.kind,
            table,
            shifts,
            factors,
            order=None if order is None else order.int(),
        )

    def _in_order(self, order: Tensor, width: int) -> bool:
        """Whether groups of the inputs `order` are consecutive and whole, and all of the weight's `width`."""
        assert self.order is not None
        return width == self.shape[1] and torch.equal(self.order[order], torch.arange(width) // self.block[1])


@dataclass(frozen=True, slots=True)
class Whole:
    """Numbers of one byte each, fp8 or int8, [out, in]."""

    weight: Tensor
    table: None = None

    @property
    def shape(self) -> tuple[int, int]:
        out, inputs = self.weight.shape
        return out, inputs

    @property
    def limits(self) -> tuple[int, int] | None:
        return None if self.weight.is_floating_point() else (-128, 127)

    def part(self, rows: slice, columns: slice, device: torch.device) -> Tensor:
        return self.weight[rows, columns].to(device)

    def coded(self, rows: slice, columns: slice) -> Coded | None:
        if self.weight.dtype not in (torch.int8, FP8):
            return None
        octets = self.weight.view(torch.uint8)[rows, columns]
        if self.weight.dtype == torch.int8:
            return Coded(octets, "int8")
        return None if ((octets & 127) == 127).any() else Coded(octets, "fp8")  # NaN


def half_scales(scales: Tensor, numbers: Callable[[], Tensor]) -> Tensor | None:
    """Scales of groups of `GROUP` numbers as float16. None if that is not exact, except where all numbers of
    a group are 0, whose scale is 0 then. `numbers`: reads them, [rows, columns]."""
    narrow = scales.half()
    if (off := narrow.float() != scales).any():
        found = numbers()
        if pad(found, (0, -found.shape[1] % GROUP)).view(*scales.shape, GROUP)[off].any():
            return None
        narrow[off] = 0
    return narrow


def spread(name: str, scales: Tensor, shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """Scales, or zeros, of a weight of `shape` as [blocks along out, blocks along in].

    `block`: outputs and inputs of a block. Raises `ModelError` if the tensor has another number of them.
    """
    expected = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    if scales.shape != expected and (expected[1] > 1 or scales.numel() != expected[0]):
        found = list(scales.shape)
        raise ModelError(f"tensor {name} has shape {found}, the weight's {list(shape)} mean {list(expected)}")
    return scales.reshape(expected)
