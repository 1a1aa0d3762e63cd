"""The products of `linear.py` with weights as a checkpoint has them: codes, and scales of groups of inputs.

Weights are not rounded: see `kernels/codes.py`. Where codes mean whole numbers, or halves of them, the
activations are quantized to int8 in every call, and sums of a group are exact integers. Where they mean
others (fp8, nf4), codes become float32 within the product, and activations are not rounded (`src/coded.cpp`).
"""

import ctypes

import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.cpu.library import address
from gpu_worker.kernels.cpu.linear import COLUMNS, Packed, PackedGated, PackedLinear

KINDS = {"int8": 0, "whole": 1, "fp8": 2, "table": 3}
"""The library's numbers of kinds of codes. `whole`: multiples of `unit` in a table."""
UNITS = (1.0, 0.5)


class _Codes(ctypes.Structure):
    """What codes mean, as the library reads it (`src/coded.cpp`)."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("size", ctypes.c_int64),
        ("span", ctypes.c_int64),
        ("halves", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("shifts", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("table", ctypes.c_float * 16),
        ("whole", ctypes.c_int8 * 16),
        ("unit", ctypes.c_float),
    )


class _Coded(Packed):
    """Weights in panels of codes."""

    symbol = "quire_coded"

    def _pack(self, weight: Tensor) -> None:
        assert isinstance(weight, CodedWeight)
        codes = weight.codes
        # Bytes of a row: codes of 4 bits fill words of eight.
        self._take_panels(self.in_features if codes.table is None else -(-self.in_features // 8) * 4)
        table = [] if codes.table is None else codes.table.tolist()
        unit = next((each for each in UNITS if table and _are_bytes(table, each)), 0.0)
        scales, shifts, factors = map(self._by_panel, (codes.scales, codes.shifts, codes.factors))
        order = None if codes.order is None else codes.order.int().contiguous()
        is_half = codes.scales.dtype == torch.float16
        self._tensors = [each for each in (scales, shifts, factors, order) if each is not None]
        self._codes = _Codes(
            kind=KINDS["whole" if unit else codes.kind],
            size=codes.size,
            span=codes.span or self.in_features,
            halves=address(scales) if is_half else None,
            scales=None if is_half else address(scales),
            factors=address(factors),
            shifts=address(shifts),
            order=address(order),
            table=(ctypes.c_float * 16)(*table),
            whole=(ctypes.c_int8 * 16)(*(int(each / unit) for each in table if unit)),
            unit=unit,
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


def _are_bytes(table: list[float], unit: float) -> bool:
    """Whether all numbers are multiples of `unit`, from -127 to 127 of them."""
    return all(each == round(each / unit) * unit and abs(each / unit) <= 127 for each in table)


class CodedLinear(_Coded, PackedLinear):
    """As `PackedLinear`; the weight is a `CodedWeight`, and `rows` are dequantized rows of it."""


class CodedGated(_Coded, PackedGated):
    """As `PackedGated`; the weight is a `CodedWeight`."""
