"""The products of `linear.py` with weights of 4 bits: little more than half the bytes of int8.

Weights are quantized once, with a scale for each group of 32 along `in`. Activations are quantized to int8 in
every call, with a scale for each row. Both are symmetric. The sums of a group are exact integers.
"""

import ctypes

from torch import Tensor

from gpu_worker.kernels.cpu.library import address
from gpu_worker.kernels.cpu.linear import Packed, PackedGated, PackedLinear
from gpu_worker.kernels.products import GROUP, scales_of

GROUP_BYTES = 2 + GROUP // 2
"""Bytes of a group: a float16 scale, and the weights."""


class _Int4(Packed):
    """Weights in panels of groups."""

    symbol = "quire_int4"

    def _pack(self, weight: Tensor) -> None:
        self._take_panels(-(-self.in_features // GROUP) * GROUP_BYTES)
        pack = self._library.quire_int4_pack
        scales = scales_of(weight)
        given = (weight, None if scales is None else scales.contiguous(), self._panels)
        pack(ctypes.byref(self._matrix), *(ctypes.c_void_p(address(tensor)) for tensor in given))


class Int4Linear(_Int4, PackedLinear):
    """As `PackedLinear`; `rows` are dequantized rows of the weight."""


class Int4Gated(_Int4, PackedGated):
    """As `PackedGated`."""
