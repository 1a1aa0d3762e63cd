"""Products whose weights are numbers of 4 bits, in plain PyTorch.

    weight        [out, in]       whole numbers from -8 to 7, with a scale for each 32 along `in`
    activations   [tokens, in]    as they are
    product       activations * (weight * scale)^T, in float32

That is 4.5 bits a weight. A group has few numbers, so that its largest is not much larger than the others:
with one scale for each output 16 steps would be too few. The scale makes the largest -8, whatever its sign,
for there is one more step below zero than above: an idea of ggml's format Q4_0 (github.com/ggml-org/ggml).

Weights whose results are float32 stay at 8 bits (`reference/quantized.py`): the head, which is also the table
of embeddings where they are tied, and routers. They are few, and what rounding takes from them shows most:
with a head of 4 bits, too, the shipped model's perplexity would be 1.0084 times that in float32, not 1.0019.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.reference.quantized import AT_ONCE, QuantizedReference

GROUP = 32
"""Numbers along `in` that share a scale."""


def grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as numbers, int8 [out, in], and scales, float16 [out, groups].

    A weight is rounded to its number times its group's scale, ties to even numbers. Where a scale would be
    smaller than any of float16, numbers are zero; of a group with a weight that is not finite it is not
    finite either, so that products show it.
    """
    parts = [_grouped(part.float()) for part in torch.split(weight, AT_ONCE)]
    numbers, scales = zip(*parts, strict=True)
    return torch.cat(numbers), torch.cat(scales)


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    filled = pad(weight, (0, -weight.shape[1] % GROUP)).reshape(len(weight), -1, GROUP)
    high, low = filled.amax(-1), filled.amin(-1)
    extreme = torch.where(-low > high, low, high)  # of two that are as large, the one above zero
    scales = (extreme / -8).half()
    divisors = scales.float()[..., None]
    numbers = torch.where(divisors == 0, 0.0, filled / divisors).nan_to_num().round().clamp(-8, 7)
    return numbers.to(torch.int8).flatten(1)[:, : weight.shape[1]], scales


def widened(numbers: Tensor, scales: Tensor) -> Tensor:
    """What `grouped` has left of a weight, float32 [out, in]."""
    return numbers * scales.float().repeat_interleave(GROUP, 1)[:, : numbers.shape[1]]


class Int4Linear:
    """See `Linear`. `rows` are what rounding has left of the weight's rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._numbers, self._scales = grouped(weight)
        self._bias, self._dtype = bias, weight.dtype

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._product(hidden).to(self._dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.copy_(self._product(hidden) + residual)

    def rows(self, numbers: Tensor) -> Tensor:
        return widened(self._numbers[numbers], self._scales[numbers]).to(self._dtype)

    def _product(self, hidden: Tensor) -> Tensor:
        """float32 [tokens, out]."""
        bias = None if self._bias is None else self._bias.float()
        return linear(hidden.float(), widened(self._numbers, self._scales), bias)


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
