"""Products by cuBLAS, with weights in the type of the activations."""

import torch
from torch import Tensor

from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.reference.kernels import ReferenceLinear
from gpu_worker.kernels.triton.norm import gated


class TritonLinear(ReferenceLinear):
    """See `Linear`. A residual is added where the product's sums are, before they are rounded; results wider
    than the weights are these sums."""

    def __call__(self, hidden: Tensor) -> Tensor:
        if self._dtype == self._weight.dtype:
            return super().__call__(hidden)
        if hidden.is_cuda:
            sums = torch.mm(hidden, self._weight.t(), out_dtype=self._dtype)
        else:  # which PyTorch has for GPUs alone
            sums = hidden.to(self._dtype) @ self._weight.t().to(self._dtype)
        return sums if self._bias is None else sums + self._bias

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.addmm_(hidden, self._weight.t())
        if self._bias is not None:
            residual += self._bias


class TritonGated:
    """See `Kernels.gated`: the activation, behind any product."""

    def __init__(self, product: Linear, activation: str) -> None:
        self.parts, self._activation = product, activation

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.activated(self.parts(hidden))

    def activated(self, parts: Tensor) -> Tensor:
        return gated(parts, self._activation)
