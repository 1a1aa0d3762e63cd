"""Products with weights of 4 bits, in plain PyTorch.

    weight        [out, in]       from -8 to 7, with a float16 scale for each group of 32 along `in`
    activations   [tokens, in]    not quantized
    product       activations * (weight * scale)^T, in float32

That is 4.5 bits a weight. Groups are small, so that a group's largest weight is not much larger than the
others: with one scale for each output 16 values would be too few. The scale makes the largest weight -8,
whatever its sign, because there is one more value below zero than above. That is an idea of ggml's format
Q4_0 (github.com/ggml-org/ggml). A weight that was quantized before brings its scales along, which are kept.

Weights whose results are float32 have 8 bits (`reference/quantized.py`): the head, which is also the
embedding table if they are tied, and routers. They are few, and rounding them costs most: with a head of 4
bits the shipped model's perplexity would be 1.0084 times the perplexity in float32, instead of 1.0019 times.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from gpu_worker.kernels.products import GROUP, Gated, Linear, ScaledWeight, scales_of
from gpu_worker.kernels.reference.kernels import ReferenceGated, WideLinear
from gpu_worker.kernels.reference.quantized import AT_ONCE, QuantizedReference

PIECE = 1 << 18
"""Weights whose zero points are moved at a time: their float32 copies take 1 MiB each."""


def quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize weight [out, in] to numbers, int8 [out, in], and scales, float16 [out, groups].

    Weights are rounded to the nearest multiple of their group's scale, ties to even. If a scale is too small
    for float16, the group's numbers are zero. If a weight of a group is not finite, its scale is not finite
    either, so that products are not finite. A `ScaledWeight` keeps its scales.
    """
    starts = range(0, max(1, len(weight)), AT_ONCE)
    parts = [_quantize_groups(weight[first : first + AT_ONCE]) for first in starts]
    numbers, scales = zip(*parts, strict=True)
    return torch.cat(numbers), torch.cat(scales)


def _quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = scales_of(weight)
    filled = pad(weight.float(), (0, -weight.shape[1] % GROUP)).reshape(len(weight), -1, GROUP)
    if scales is None:
        high, low = filled.amax(-1), filled.amin(-1)
        extreme = torch.where(-low > high, low, high)  # of two of equal size the positive one
        scales = (extreme / -8).half()
    divisors = scales.float()[..., None]
    numbers = torch.where(divisors == 0, 0.0, filled / divisors).nan_to_num().round().clamp(-8, 7)
    return numbers.to(torch.int8).flatten(1)[:, : weight.shape[1]], scales


def dequantized(numbers: Tensor, scales: Tensor) -> Tensor:
    """Weight, float32 [out, in], from the results of `quantize_groups`."""
    return numbers * scales.float().repeat_interleave(GROUP, 1)[:, : numbers.shape[1]]


class Int4Linear(WideLinear):
    """See `Linear`. `rows` are dequantized rows of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._numbers, self._scales = quantize_groups(weight)
        self._bias, self._dtype = bias, weight.dtype

    def rows(self, numbers: Tensor) -> Tensor:
        return dequantized(self._numbers[numbers], self._scales[numbers]).to(self._dtype)

    def _product(self, hidden: Tensor) -> Tensor:
        bias = None if self._bias is None else self._bias.float()
        return linear(hidden.float(), dequantized(self._numbers, self._scales), bias)


class ShiftedLinear:
    """See `Linear`: a weight of 4 bits with zero points.

        weight * hidden  =  (weight - shifts) * hidden  +  shifts * (sums of hidden over groups)

    The first product has whole multiples of scales, as back ends multiply them. The second is as much smaller
    as groups are large, and computed in float32.
    """

    def __init__(self, weight: ScaledWeight, shifts: Tensor, product: Callable[[Tensor], Linear]) -> None:
        """`product`: makes the first product of its weight."""
        self._size, (self._out, self._in) = weight.shift_size, weight.shape
        self._shifts = shifts.t().contiguous()
        centered = torch.empty_like(weight.as_subclass(Tensor))
        step = max(1, PIECE // self._in)
        for first in range(0, self._out, step):
            rows = slice(first, first + step)
            centered[rows] = weight[rows].float() - self._spread(shifts[rows])
        self._product = product(ScaledWeight.of(centered, weight.scales))

    def __call__(self, hidden: Tensor) -> Tensor:
        product = self._product(hidden)
        return (product + self._shifted(hidden)).to(product.dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.copy_(self._product(hidden) + self._shifted(hidden) + residual)

    def rows(self, numbers: Tensor) -> Tensor:
        centered = self._product.rows(numbers)
        return (centered + self._spread(self._shifts.t()[numbers])).to(centered.dtype)

    def _shifted(self, hidden: Tensor) -> Tensor:
        """float32 [tokens, out]."""
        filled = pad(hidden.float(), (0, -self._in % self._size))
        return filled.view(len(hidden), len(self._shifts), self._size).sum(-1) @ self._shifts

    def _spread(self, shifts: Tensor) -> Tensor:
        """The shift of each weight, [rows, in], from shifts of rows [rows, groups]."""
        return shifts.repeat_interleave(self._size, 1)[:, : self._in]


class Int4Weights:
    """Stands before a back end of int8 weights: they have 4 bits, but for those whose rounding shows most."""

    takes_shifts: ClassVar[bool] = False
    """Whether its products take a weight with shifts. Otherwise `ShiftedLinear` multiplies it."""

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
        if isinstance(weight, ScaledWeight) and weight.shifts is not None and not self.takes_shifts:
            return ShiftedLinear(weight, weight.shifts, lambda centered: self._int4(centered, bias))
        return self._int4(weight, bias)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        if isinstance(weight, ScaledWeight) and weight.shifts is not None and not self.takes_shifts:
            return ReferenceGated(self.linear(weight, bias), activation)
        inner: Gated = super().gated(weight, bias, activation)  # type: ignore[misc]
        return inner

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Products with weights of 4 bits."""
        raise NotImplementedError


class Int4Reference(Int4Weights, QuantizedReference):
    """See `Kernels`."""

    def __init__(self) -> None:
        super().__init__(torch.int8)

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return Int4Linear(weight, bias)
