"""The back end for CPUs: everything on a step's way in C++. See `Kernels`."""

import ctypes

import torch
from torch import Tensor

from gpu_worker.batch import Batch
from gpu_worker.kernels.cpu.attention import Attention, CpuStep
from gpu_worker.kernels.cpu.layers import CpuNorm
from gpu_worker.kernels.cpu.linear import PackedGated, PackedLinear
from gpu_worker.kernels.cpu.sample import Sampler
from gpu_worker.kernels.interface import StepMetadata
from gpu_worker.plan import Int32s
from gpu_worker.sampler import Sampled


class CpuKernels:
    """See `Kernels`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._sampler = Sampler(library)
        self._attention = Attention(library)

    def linear(
        self, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
    ) -> PackedLinear:
        return PackedLinear(self._library, weight, bias, wide=dtype == torch.float32)

    def gated(self, weight: Tensor, bias: Tensor | None = None) -> PackedGated:
        return PackedGated(self._library, weight, bias)

    def norm(self, weight: Tensor, eps: float) -> CpuNorm:
        return CpuNorm(self._library, weight, eps)

    def begin(self, step: StepMetadata) -> CpuStep:
        return self._attention.begin(step)

    def sample(self, logits: Tensor, slots: Int32s, device_slots: Tensor, batch: Batch) -> Sampled:
        return self._sampler(logits, slots, batch)
