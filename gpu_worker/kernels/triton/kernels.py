"""The back end for GPUs: products by cuBLAS; attention, sampling and what lies between in Triton."""

from collections.abc import Iterable, Sequence

import torch
import triton
from torch import Tensor
from torch.nn.functional import linear

from gpu_worker.errors import KernelError
from gpu_worker.kernels.interface import (
    Copies,
    LayerCache,
    Linear,
    Mixture,
    Route,
    Routing,
    StepMetadata,
    Unary,
)
from gpu_worker.kernels.reference.kernels import ReferenceKernels, ReferenceLinear
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from gpu_worker.kernels.triton.mixture.route import TritonRoute
from gpu_worker.kernels.triton.norm import TritonNorm, gated
from gpu_worker.kernels.triton.sampling.sample import sample
from gpu_worker.sampling.sampler import Sampled
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import Int32s

INTERPRETED = 8
"""Processors that the interpreter is taken to have."""


class TritonKernels(ReferenceKernels):
    """See `Kernels`."""

    replayable = True

    def __init__(self, device: torch.device) -> None:
        """`device`: a GPU, or the CPU if Triton interprets. Raises `KernelError` if it can do neither."""
        self._device = device
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
            _probe(device)
        elif triton.knobs.runtime.interpret:
            self._processors = INTERPRETED
        else:
            raise KernelError("Triton needs a GPU (or TRITON_INTERPRET=1, which is for tests)")

    def enter(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_blas_handle()  # each thread has its own, which takes a while to make

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return TritonLinear(weight, bias, dtype or weight.dtype)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Unary:
        return TritonGated(weight, bias, activation)

    def mixture(
        self, blocks: Iterable[tuple[Tensor, Tensor]], count: int, activation: str = "silu"
    ) -> Mixture:
        return TritonMixture(blocks, count, activation)

    def route(self, routing: Routing, correction: Tensor | None = None) -> Route:
        if routing.groups > 1:
            return super().route(routing, correction)
        return TritonRoute(routing, correction)

    def norm(self, weight: Tensor, eps: float) -> TritonNorm:
        return TritonNorm(weight, eps)

    def copies(self, caches: Sequence[LayerCache]) -> Copies:
        return BlockCopies(caches)

    def begin(self, step: StepMetadata) -> TritonStep:
        return TritonStep(step, self._processors)

    def sample(
        self, logits: Tensor, slots: Int32s, device_slots: Tensor, positions: Int32s, batch: Batch
    ) -> Sampled:
        return sample(logits, slots, device_slots, positions, batch)


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
    """See `Kernels.gated`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        self._weight, self._bias, self._activation = weight, bias, activation

    def __call__(self, hidden: Tensor) -> Tensor:
        return gated(linear(hidden, self._weight, self._bias), self._activation)


def _probe(device: torch.device) -> None:
    """Launch something: Triton needs a C compiler and Python's headers. Raises `KernelError`."""
    one = torch.ones((1, 2), device=device)
    try:
        gated(one)
    except Exception as error:  # of a compiler, of a driver: Triton lets all kinds through
        raise KernelError(f"Triton cannot compile here: {error}") from error
