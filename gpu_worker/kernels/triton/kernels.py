"""The back ends for GPUs: products by cuBLAS; attention, sampling and what lies between in Triton.

TritonKernels      weights in the type of the activations
QuantizedTriton    weights and activations of products in int8 or fp8
Int4Triton         weights in int4
KeptTriton         weights as the checkpoint has them
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import torch
import triton
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.errors import KernelError
from gpu_worker.kernels.attention import Cache, Copies, KvFormat, StepMetadata
from gpu_worker.kernels.codes import CodedWeight, plain_of
from gpu_worker.kernels.products import Clamped, Expert, Gated, Linear, Mixture, Route, Routing, scales_of
from gpu_worker.kernels.reference.int4 import Int4Weights
from gpu_worker.kernels.reference.kept import KeptWeights, Kind
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.sampling import Allowed, Sampled, SamplingState
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention.attention import TritonStep
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.formats.fp8 import is_native
from gpu_worker.kernels.triton.kv import FORMATS
from gpu_worker.kernels.triton.mixture.fp8_groups_mixture import GroupsMixture
from gpu_worker.kernels.triton.mixture.int4_mixture import Int4Mixture
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from gpu_worker.kernels.triton.mixture.route import TritonRoute
from gpu_worker.kernels.triton.norm import TritonNorm, gated
from gpu_worker.kernels.triton.products.fp8_groups import TritonGroupsLinear
from gpu_worker.kernels.triton.products.int4 import TritonInt4Linear
from gpu_worker.kernels.triton.products.linear import TritonGated, TritonLinear
from gpu_worker.kernels.triton.products.quantized import TritonQuantizedLinear
from gpu_worker.kernels.triton.sampling.sample import sample

INTERPRETED = 8
"""Processors that the interpreter is taken to have."""


class TritonKernels(ReferenceKernels):
    """See `Kernels`."""

    replayable = True

    def __init__(self, device: torch.device) -> None:
        """`device`: a GPU, or the CPU if Triton interprets. Raises `KernelError` if it can do neither."""
        self._device = device
        if device.type == "cuda":
            if torch.version.hip is not None:
                raise KernelError("Triton's kernels are for GPUs of NVIDIA, and this one is AMD's")
            if gpu.capability(device) < (8, 0):
                raise KernelError("Triton's kernels need a GPU of compute capability 8.0: Ampere or later")
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

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        return TritonGated(self.linear(weight, bias), activation)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        return TritonMixture(experts, count, activation)

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        if routing.num_groups > 1:
            return super().route(routing, score_correction_bias)
        return TritonRoute(routing, score_correction_bias)

    def norm(self, weight: Tensor, eps: float) -> TritonNorm:
        return TritonNorm(weight, eps)

    def copies(self, caches: Sequence[Cache]) -> Copies:
        return BlockCopies(caches)

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        return FORMATS[name](dtype, self._device)

    def begin(self, step: StepMetadata) -> TritonStep:
        return TritonStep(step, self._processors)

    def sample(
        self,
        logits: Tensor,
        slots: Int32s,
        device_slots: Tensor,
        positions: Int32s,
        state: SamplingState,
        allowed: Allowed | None = None,
    ) -> Sampled:
        return sample(logits, slots, device_slots, positions, state, allowed)


class QuantizedTriton(TritonKernels):
    """See `Kernels`."""

    def __init__(self, device: torch.device, weight_dtype: torch.dtype) -> None:
        """`weight_dtype`: int8 or fp8. Raises `KernelError` if the device does not multiply them."""
        super().__init__(device)
        if weight_dtype == FP8 and device.type == "cuda" and not is_native(device):
            raise KernelError("this GPU multiplies no fp8, which Ada and Hopper do: take int8")
        self._weight_dtype = weight_dtype

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return TritonQuantizedLinear(weight, bias, dtype or weight.dtype, self._weight_dtype)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        """Experts have quantized weights, but activations are not quantized."""
        return TritonMixture(experts, count, activation, self._weight_dtype)


class Int4Triton(Int4Weights, QuantizedTriton):
    """See `Kernels`. Weights of the head and of routers are int8."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, torch.int8)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        return Int4Mixture(experts, count, activation)

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return TritonInt4Linear(weight, bias, self._processors)


class GroupsTriton(TritonKernels):
    """See `Kernels`. Weights are of fp8 with scales of groups: see `products/fp8_groups.py`."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return TritonGroupsLinear(weight, bias, dtype or weight.dtype, self._processors)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        return GroupsMixture(experts, count, activation)


class KeptTriton(KeptWeights, TritonKernels):
    """See `Kernels`. fp8 with a scale for each output is kept where the GPU multiplies it. Experts are kept
    if they are of 4 bits, or of fp8 with scales of groups."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        kept: dict[Kind, TritonKernels] = {
            "int4": Int4Triton(device),
            "fp4": Int4Triton(device),
            "fp8 groups": GroupsTriton(device),
            "int8": QuantizedTriton(device, torch.int8),
        }
        if device.type != "cuda" or is_native(device):
            kept["fp8"] = QuantizedTriton(device, FP8)
        self.kept = kept

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        rest = iter(experts)
        first = next(rest)
        every = chain((first,), rest)
        for kind in ("int4", "fp4"):
            if all(scales_of(weight, kind) is not None for weight in (first.up, first.down)):
                return self.kept[kind].mixture(every, count, activation)
        if isinstance(first.up, CodedWeight) and isinstance(first.down, CodedWeight):
            return self.kept["fp8 groups"].mixture(every, count, activation)
        plain = (replace(each, up=plain_of(each.up), down=plain_of(each.down)) for each in every)
        return super().mixture(plain, count, activation)


def _probe(device: torch.device) -> None:
    """Launch something: Triton needs a C compiler and Python's headers. Raises `KernelError`."""
    one = torch.ones((1, 2), device=device)
    try:
        gated(one)
    except Exception as error:  # of a compiler, of a driver: Triton lets all kinds through
        raise KernelError(f"Triton cannot compile here: {error}") from error
