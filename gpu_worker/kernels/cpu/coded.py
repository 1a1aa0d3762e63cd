"""The products of `linear.py` with weights as a checkpoint has them: codes, and scales of groups of inputs.

Weights are not rounded: see `kernels/codes.py`. Where codes mean whole numbers, or halves of them, the
activations are quantized to int8 in every call, with a scale for each group, or for each 64 inputs of a
longer one, and sums of these are exact integers. Where they mean others (fp8, nf4), codes become float32
within the product, and activations are not rounded (`src/coded.cpp`).
Whole numbers that differ by less than 32 or 64 take 5 or 6 bits.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight, Codes
from gpu_worker.kernels.cpu.library import address
from gpu_worker.kernels.cpu.linear import COLUMNS, Packed, PackedGated, PackedLinear

KINDS = {
    "int8": (0, 4, 1),
    "whole": (1, 8, 1),
    "fp8": (2, 4, 1),
    "table": (3, 8, 1),
    "small": (4, 8, 1),
    "five": (5, 32, 5),
    "six": (6, 16, 3),
}
"""Kinds of codes (see `src/codes.h`): the library's number, and how many inputs fill how many words."""
UNITS = (1.0, 0.5)
SMALL = range(-32, 32)
"""Values of the kinds `small`, `five` and `six`."""


class _Numbers(ctypes.Structure):
    """Numbers of one type, or none."""

    _fields_ = (("bytes", ctypes.c_void_p), ("halves", ctypes.c_void_p), ("floats", ctypes.c_void_p))

    @classmethod
    def of(cls, numbers: Tensor | None) -> "_Numbers":
        types = (torch.int8, torch.float16, torch.float32)
        return cls(
            *(address(numbers) if numbers is not None and numbers.dtype is each else None for each in types)
        )


class _Codes(ctypes.Structure):
    """What codes mean, as the library reads it (`src/coded.cpp`)."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("span", ctypes.c_int64),
        ("scales", _Numbers),
        ("shifts", _Numbers),
        ("factors", ctypes.c_void_p),
        ("shift_factors", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("table", ctypes.c_float * 16),
        ("whole", ctypes.c_int8 * 16),
        ("unit", ctypes.c_float),
        ("lowest", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """How the library keeps codes."""

    kind: str
    """Of `KINDS`."""
    unit: float = 1.0
    """What values are multiples of."""
    lowest: int = 0
    """The lowest value, a multiple of `unit`, if the kind's codes are unsigned."""


class _Coded(Packed):
    """Weights in panels of codes."""

    symbol = "quire_coded"

    def _pack(self, weight: Tensor) -> None:
        assert isinstance(weight, CodedWeight)
        codes = weight.codes
        form = _form_of(codes)
        kind, inputs, words = KINDS[form.kind]
        self._take_panels(-(-self.in_features // inputs) * words * 4)
        table = [] if codes.table is None else codes.table.tolist()
        whole = [int(each / form.unit) - form.lowest for each in table if form.kind != "table"]
        given = (codes.scales, codes.shifts, codes.factors, codes.shift_factors)
        scales, shifts, factors, shift_factors = map(self._by_panel, given)
        order = None if codes.order is None else codes.order.int().contiguous()
        kept = (scales, shifts, factors, shift_factors, order)
        self._tensors = [each for each in kept if each is not None]
        self._codes = _Codes(
            kind=kind,
            size=codes.size,
            span=codes.span or self.in_features,
            scales=_Numbers.of(scales),
            shifts=_Numbers.of(shifts),
            factors=address(factors),
            shift_factors=address(shift_factors),
            order=address(order),
            table=(ctypes.c_float * 16)(*table),
            whole=(ctypes.c_int8 * 16)(*whole),
            unit=form.unit,
            lowest=form.lowest,
        )
        self._matrix.codes = ctypes.addressof(self._codes)
        numbers = codes.numbers.contiguous()
        self._library.quire_coded_pack(
            ctypes.byref(self._matrix),
            ctypes.c_void_p(address(numbers)),
            ctypes.c_void_p(address(self._panels)),
        )

    def _by_panel(self, numbers: Tensor | None) -> Tensor | None:
        """Numbers of outputs and groups, [out, groups], as [panels, groups, columns]."""
        if numbers is None:
            return None
        halves, groups = 2 if self.gated else 1, numbers.shape[1]
        columns = numbers.new_zeros(halves, self.count * COLUMNS // halves, groups)
        columns[:, : self.out_features] = numbers.view(halves, -1, groups)
        return columns.view(halves, self.count, -1, groups).permute(1, 3, 0, 2).contiguous()

    @property
    def nbytes(self) -> int:
        """Bytes that the packed weights take."""
        return self._panels.nbytes + sum(each.nbytes for each in self._tensors)


def _form_of(codes: Codes) -> _Form:
    """The form that takes the fewest bits."""
    if codes.table is not None:
        table = codes.table.tolist()
        unit = next((each for each in UNITS if _are_bytes(table, each)), 0.0)
        if not unit:
            return _Form("table")
        lowest, highest = int(min(table) / unit), int(max(table) / unit)
        return _Form("small", unit, lowest) if _are_small(lowest, highest) else _Form("whole", unit)
    if codes.kind == "int8":
        lowest, highest = (int(each) for each in codes.numbers.view(torch.int8).aminmax())
        for kind, count in (("five", 32), ("six", 64)):
            if _are_small(lowest, highest) and highest - lowest < count and codes.size % KINDS[kind][1] == 0:
                return _Form(kind, lowest=lowest)
    return _Form(codes.kind)


def _are_bytes(table: list[float], unit: float) -> bool:
    """Whether all numbers are multiples of `unit`, from -127 to 127 of them."""
    return all(each == round(each / unit) * unit and abs(each / unit) <= 127 for each in table)


def _are_small(lowest: int, highest: int) -> bool:
    return lowest in SMALL and highest in SMALL


class CodedLinear(_Coded, PackedLinear):
    """As `PackedLinear`; the weight is a `CodedWeight`, and `rows` are dequantized rows of it."""


class CodedGated(_Coded, PackedGated):
    """As `PackedGated`; the weight is a `CodedWeight`."""
