"""Products whose weights are numbers of one byte, in plain PyTorch.

    weight        [out, in]       int8 or fp8, each output with a scale: its largest / 127 or / 448
    activations   [tokens, in]    the same, each token with a scale, found anew in every product
    product       (activations * weight^T) * scale of the token * scale of the output

So the sums are of numbers of one byte, which matrix units multiply twice as fast as those of two, and only
they are read. Sums of int8 are exact, and then rounded to float32; those of fp8 are float32.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.kernels.products import Linear, Unary
from gpu_worker.kernels.reference.kernels import ACTIVATIONS, ReferenceKernels
from gpu_worker.kernels.reference.rows import quantized, widened

ALIGNED = 16
"""Outputs and inputs are filled up with zeros to a multiple: GPUs multiply no others."""

AT_ONCE = 4096
"""Outputs that are quantized together: in float32 they take memory beside the weights."""


class QuantizedLinear:
    """See `Linear`. `rows` are what quantization has left of the weight's rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, numbers: torch.dtype) -> None:
        """`dtype`: of the results. `numbers`: int8 or fp8."""
        self._out, self._in = weight.shape
        self._dtype, self._kept = dtype, weight.dtype
        self._bias = bias
        parts = [quantized(part, numbers) for part in torch.split(weight, AT_ONCE)]
        filled = (0, -self._in % ALIGNED, 0, -self._out % ALIGNED)
        self._numbers = pad(torch.cat([_bytes(part) for part, _ in parts]), filled).view(numbers)
        self._scales = torch.cat([scales for _, scales in parts])

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._product(hidden).to(self._dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.copy_(self._product(hidden) + residual)

    def rows(self, numbers: Tensor) -> Tensor:
        taken = _bytes(self._numbers)[numbers, : self._in].view(self._numbers.dtype)
        return widened(taken.float(), self._scales[numbers], self._kept)

    def _product(self, hidden: Tensor) -> Tensor:
        """float32 [tokens, out]."""
        numbers, scales = quantized(hidden, self._numbers.dtype)
        filled = pad(_bytes(numbers), (0, -self._in % ALIGNED)).view(numbers.dtype)
        product = multiplied(filled, self._numbers)[:, : self._out] * scales[:, None] * self._scales
        return product if self._bias is None else product + self._bias


def multiplied(left: Tensor, right: Tensor) -> Tensor:
    """left [tokens, in] times right [out, in], both int8 or both fp8: float32 [tokens, out]."""
    wide = torch.float64 if left.dtype == torch.int8 else torch.float32  # which holds their sums exactly
    return (left.to(wide) @ right.to(wide).t()).float()


class QuantizedGated:
    """See `Kernels.gated`."""

    def __init__(self, product: Linear, activation: str) -> None:
        self._product, self._activate = product, ACTIVATIONS[activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, up = self._product(hidden).chunk(2, dim=-1)
        return self._activate(gate) * up


class QuantizedReference(ReferenceKernels):
    """See `Kernels`."""

    def __init__(self, numbers: torch.dtype) -> None:
        """`numbers`: int8 or fp8."""
        self._numbers = numbers

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return QuantizedLinear(weight, bias, dtype or weight.dtype, self._numbers)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Unary:
        return QuantizedGated(self.linear(weight, bias), activation)


def _bytes(numbers: Tensor) -> Tensor:
    """As everything can cut, fill up and put together."""
    return numbers.view(torch.uint8)
