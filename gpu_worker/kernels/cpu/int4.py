"""The products of `linear.py` with weights of 4 bits: little more than half the bytes of int8.

Weights are quantized once, with a scale for each group of 32 along `in`. Activations are quantized to int8 in
every call, with a scale for each group. Both are symmetric. The sums of a group are exact integers. A
`ScaledWeight` keeps its scales, and its shifts, rounded to float16.
"""

import ctypes

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import address
from gpu_worker.kernels.cpu.linear import COLUMNS, Packed, PackedGated, PackedLinear
from gpu_worker.kernels.products import GROUP, ScaledWeight

GROUP_BYTES = 2 + GROUP // 2
"""Bytes of a group: a float16 scale, and the weights."""


class _Int4(Packed):
    """Weights in panels of groups."""

    symbol = "quire_int4"

    def _pack(self, weight: Tensor) -> None:
        self._take_panels(-(-self.in_features // GROUP) * GROUP_BYTES)
        scales = shifts = self._shifts = None
        if isinstance(weight, ScaledWeight):
            scales = weight.scales.contiguous()
            if weight.shifts is not None:
                shifts = weight.shifts.contiguous()
                self._shifts = torch.zeros(self.count * shifts.shape[1] * COLUMNS, dtype=torch.float16)
                self._matrix.shifts = address(self._shifts)
                self._matrix.shift_groups = -(-weight.shift_size // GROUP)
        given = (weight.contiguous(), scales, shifts, self._panels, self._shifts)
        self._library.quire_int4_pack(
            ctypes.byref(self._matrix), *(ctypes.c_void_p(address(tensor)) for tensor in given)
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the packed weights take."""
        return self._panels.nbytes + (0 if self._shifts is None else self._shifts.nbytes)


class Int4Linear(_Int4, PackedLinear):
    """As `PackedLinear`; `rows` are dequantized rows of the weight."""


class Int4Gated(_Int4, PackedGated):
    """As `PackedGated`."""
