"""The products of `linear.py` with weights of int8: half the bytes to read in every step.

Weights are quantized once, with a scale for each output, unless a `ByteWeight` brings its scales along.
Activations are quantized in every call, with a scale for each row (dynamic quantization). Both are symmetric.
Sums are exact integers.

A few activations of a row are often many times as large as the others, which a scale for the whole row
would round to little. So both operands are rotated before: 16 numbers at a time are multiplied by a Hadamard
matrix. The product stays the same. A `ByteWeight` is not rotated, which would round it again; weights that a
checkpoint has in int8 are codes instead (`kernels.py`).
"""

import ctypes

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import address
from gpu_worker.kernels.cpu.linear import COLUMNS, Packed, PackedGated, PackedLinear
from gpu_worker.kernels.products import byte_scales_of

LONGEST = 1 << 16
"""Longest row: the products of its numbers, at most 255 * 127 each, add up to less than 2**31."""


class _Quantized(Packed):
    """Weights in panels of int8, with scales and corrections (`src/quantized.cpp`)."""

    symbol = "quire_quantized"

    def _pack(self, weight: Tensor) -> None:
        if self.in_features > LONGEST:
            raise ValueError(f"rows of {self.in_features} numbers overflow their sums: {LONGEST} at most")
        self._take_panels(self.in_features)
        self._scales = torch.empty(self.count * COLUMNS, dtype=torch.float32)
        self._corrections = torch.empty(self.count * COLUMNS, dtype=torch.int32)
        self._matrix.scales, self._matrix.corrections = address(self._scales), address(self._corrections)
        given = byte_scales_of(weight, torch.int8)
        self._matrix.rotates = given is None
        tensors = (weight.contiguous(), given, self._panels, self._scales, self._corrections)
        self._library.quire_quantized_pack(
            ctypes.byref(self._matrix), *(ctypes.c_void_p(address(tensor)) for tensor in tensors)
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the packed weights take."""
        return self._panels.nbytes + self._scales.nbytes + self._corrections.nbytes


class QuantizedLinear(_Quantized, PackedLinear):
    """As `PackedLinear`; `rows` are dequantized rows of the weight."""


class QuantizedGated(_Quantized, PackedGated):
    """As `PackedGated`."""
