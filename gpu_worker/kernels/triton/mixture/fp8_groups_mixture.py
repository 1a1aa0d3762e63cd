"""A mixture of experts with weights of fp8 whose scales are of groups of inputs: see `fp8_groups.py`."""

import torch
from torch import Tensor

from gpu_worker.kernels.products import Clamped
from gpu_worker.kernels.triton.mixture.dequantized import DequantizedWeights
from gpu_worker.kernels.triton.mixture.mixture import ExpertWeights, TritonMixture, multiply
from gpu_worker.kernels.triton.products.fp8_groups import dequantized, groups_of


class GroupedExpertWeights(DequantizedWeights):
    """Bytes of all experts, uint8 [count, out, in]; scales, float32 [count, groups, out]; and biases."""

    def take(self, number: int, weight: Tensor, bias: Tensor | None) -> None:
        self._shape, self._dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        own = groups_of(weight)
        self._size = own.size
        self._put(number, own.weights, own.scales, bias)

    def _dequantize(self, some: slice, matrices: Tensor) -> None:
        assert self.scales is not None
        dequantized(self.weights[some], self.scales[some], self._size, matrices)

    def _multiply(
        self,
        rows: Tensor,
        sorted_pairs: tuple[Tensor, Tensor],
        routing_weights: Tensor,
        out: Tensor,
        experts_per_token: int,
        activation: str | Clamped | None,
        tile: int,
    ) -> None:
        own = self.weights, self.scales, self.biases, self._size
        multiply(rows, sorted_pairs, own, routing_weights, out, experts_per_token, activation, tile)


class GroupsMixture(TritonMixture):
    """See `Mixture`."""

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> ExpertWeights:
        return GroupedExpertWeights(count)
