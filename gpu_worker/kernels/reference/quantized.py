"""Products with weights and activations of one byte, int8 or fp8, in plain PyTorch.

    weight        [out, in]       with a scale for each output: its largest absolute value / 127 (fp8: / 448)
    activations   [tokens, in]    with a scale for each token, computed in every product
    product       (activations * weight^T) * scale of the token * scale of the output

Both may be rotated before (`rows.rotated`), as the C++ kernels do: then a few large activations of a token do
not cost the others their precision. A `ByteWeight` is not rotated.

Matrix units multiply one-byte numbers twice as fast as two-byte numbers, and weights take half the bytes to
read. Sums of int8 are exact, and are then rounded to float32. Sums of fp8 are float32.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.kernels.products import Linear, byte_scales_of
from gpu_worker.kernels.reference.kernels import ReferenceKernels, WideLinear
from gpu_worker.kernels.reference.rows import multiples, quantized, rotated, widened

ALIGNED = 16
"""Outputs and inputs are filled up with zeros to a multiple of 16, which GPUs need."""

AT_ONCE = 4096
"""Outputs that are quantized at a time. It bounds the memory of their float32 copies."""


class QuantizedLinear(WideLinear):
    """See `Linear`. `rows` are dequantized rows of the weight."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        rotates: bool = False,
    ) -> None:
        """`dtype`: of the results. `weight_dtype`: int8 or fp8. A `ByteWeight` keeps its scales."""
        self._out, self._in = weight.shape
        self._dtype, self._rows_dtype = dtype, weight.dtype
        self._bias = bias
        scales = byte_scales_of(weight, weight_dtype)
        self._rotates = rotates and scales is None
        parts = [
            quantized(self._turned(weight[first : first + AT_ONCE]), weight_dtype)
            if scales is None
            else multiples(weight[first : first + AT_ONCE], scales[first : first + AT_ONCE], weight_dtype)
            for first in range(0, max(1, len(weight)), AT_ONCE)
        ]
        filled = (0, -self._in % ALIGNED, 0, -self._out % ALIGNED)
        self._numbers = pad(torch.cat([_bytes(part) for part, _ in parts]), filled).view(weight_dtype)
        self._scales = torch.cat([scales for _, scales in parts])

    def rows(self, numbers: Tensor) -> Tensor:
        taken = _bytes(self._numbers)[numbers, : self._in].view(self._numbers.dtype)
        return self._turned(widened(taken.float(), self._scales[numbers], torch.float32)).to(self._rows_dtype)

    def _product(self, hidden: Tensor) -> Tensor:
        numbers, scales = quantized(self._turned(hidden), self._numbers.dtype)
        filled = pad(_bytes(numbers), (0, -self._in % ALIGNED)).view(numbers.dtype)
        product = multiplied(filled, self._numbers)[:, : self._out] * scales[:, None] * self._scales
        return product if self._bias is None else product + self._bias

    def _turned(self, rows: Tensor) -> Tensor:
        return rotated(rows) if self._rotates else rows


def multiplied(left: Tensor, right: Tensor) -> Tensor:
    """left [tokens, in] times right [out, in], both int8 or both fp8: float32 [tokens, out]."""
    wide = torch.float64 if left.dtype == torch.int8 else torch.float32  # holds sums exactly
    return (left.to(wide) @ right.to(wide).t()).float()


class QuantizedReference(ReferenceKernels):
    """See `Kernels`."""

    def __init__(self, weight_dtype: torch.dtype, rotates: bool = False) -> None:
        """`weight_dtype`: int8 or fp8. `rotates`: rows are rotated, as by the C++ kernels."""
        self._weight_dtype, self._rotates = weight_dtype, rotates

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return QuantizedLinear(weight, bias, dtype or weight.dtype, self._weight_dtype, self._rotates)


def _bytes(numbers: Tensor) -> Tensor:
    """As bytes, which PyTorch can pad and concatenate; it cannot do so with fp8."""
    return numbers.view(torch.uint8)
