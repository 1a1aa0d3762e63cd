"""Products with weights of 4 bits, in plain PyTorch.

    weight        [out, in]       from -8 to 7, with a float16 scale for each group of 32 along `in`
    activations   [tokens, in]    not quantized
    product       activations * (weight * scale)^T, in float32

That is 4.5 bits a weight. Groups are small, so that a group's largest weight is not much larger than the
others: with one scale for each output 16 values would be too few. The scale makes the largest weight -8,
whatever its sign, because there is one more value below zero than above. That is an idea of ggml's format
Q4_0 (github.com/ggml-org/ggml).

Weights whose results are float32 have 8 bits (`reference/quantized.py`): the head, which is also the
embedding table if they are tied, and routers. They are few, and rounding them costs most: with a head of 4
bits the shipped model's perplexity would be 1.0084 times the perplexity in float32, instead of 1.0019 times.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.reference.quantized import AT_ONCE, QuantizedReference

GROUP = 32
"""Weights along `in` that share a scale."""


def quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize weight [out, in] to numbers, int8 [out, in], and scales, float16 [out, groups].

    Weights are rounded to the nearest multiple of their group's scale, ties to even. If a scale is too small
    for float16, the group's numbers are zero. If a weight of a group is not finite, its scale is not finite
    either, so that products are not finite.
    """
    parts = [_quantize_groups(part.float()) for part in torch.split(weight, AT_ONCE)]
    numbers, scales = zip(*parts, strict=True)
    return torch.cat(numbers), torch.cat(scales)


def _quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    filled = pad(weight, (0, -weight.shape[1] % GROUP)).reshape(len(weight), -1, GROUP)
    high, low = filled.amax(-1), filled.amin(-1)
    extreme = torch.where(-low > high, low, high)  # of two of equal size the positive one
    scales = (extreme / -8).half()
    divisors = scales.float()[..., None]
    numbers = torch.where(divisors == 0, 0.0, filled / divisors).nan_to_num().round().clamp(-8, 7)
    return numbers.to(torch.int8).flatten(1)[:, : weight.shape[1]], scales


def dequantized(numbers: Tensor, scales: Tensor) -> Tensor:
    """Weight, float32 [out, in], from the results of `quantize_groups`."""
    return numbers * scales.float().repeat_interleave(GROUP, 1)[:, : numbers.shape[1]]


class Int4Linear:
    """See `Linear`. `rows` are dequantized rows of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._numbers, self._scales = quantize_groups(weight)
        self._bias, self._dtype = bias, weight.dtype

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._product(hidden).to(self._dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.copy_(self._product(hidden) + residual)

    def rows(self, numbers: Tensor) -> Tensor:
        return dequantized(self._numbers[numbers], self._scales[numbers]).to(self._dtype)

    def _product(self, hidden: Tensor) -> Tensor:
        """float32 [tokens, out]."""
        bias = None if self._bias is None else self._bias.float()
        return linear(hidden.float(), dequantized(self._numbers, self._scales), bias)


class Int4Weights:
    """Stands before a back end of int8 weights: they have 4 bits, but for those whose rounding shows most."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        if dtype == torch.float32 or keeps_rows:
            wider: Linear = super().linear(weight, bias, dtype, keeps_rows)  # type: ignore[misc]
            return wider
        return self._int4(weight, bias)

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Products with weights of 4 bits."""
        raise NotImplementedError


class Int4Reference(Int4Weights, QuantizedReference):
    """See `Kernels`."""

    def __init__(self) -> None:
        super().__init__(torch.int8)

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return Int4Linear(weight, bias)
