"""The back end for CPUs, in C++. See `Kernels`."""

import ctypes
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Cache, Copies, KvFormat, StepMetadata
from gpu_worker.kernels.cpu.absorbed import CpuAbsorbed
from gpu_worker.kernels.cpu.attention import Attention, CpuStep
from gpu_worker.kernels.cpu.coded import CodedGated, CodedLinear
from gpu_worker.kernels.cpu.int4 import Int4Gated, Int4Linear
from gpu_worker.kernels.cpu.kv import FORMATS
from gpu_worker.kernels.cpu.layers import Activate, CpuNorm, Multiply
from gpu_worker.kernels.cpu.linear import Packed, PackedGated, PackedLinear
from gpu_worker.kernels.cpu.mixture import Add, CpuMixture, CpuRoute
from gpu_worker.kernels.cpu.onednn import OneDnnLinear
from gpu_worker.kernels.cpu.quantized import QuantizedGated, QuantizedLinear
from gpu_worker.kernels.cpu.sampling import Sampler
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import (
    Absorbed,
    Clamped,
    Expert,
    Gated,
    Linear,
    Mixture,
    Route,
    Routing,
    Unary,
)
from gpu_worker.kernels.reference.copies import copy_blocks
from gpu_worker.kernels.reference.int4 import Int4Weights
from gpu_worker.kernels.reference.kept import KeptWeights, Kind
from gpu_worker.kernels.reference.kernels import ReferenceGated
from gpu_worker.kernels.reference.mixture import ReferenceMixture, activating, products_of
from gpu_worker.kernels.sampling import Allowed, Sampled, SamplingState
from gpu_worker.machine.huge_pages import keep_freed_memory


class CpuKernels:
    """See `Kernels`."""

    _linear: ClassVar[type[PackedLinear]] = PackedLinear
    _gated: ClassVar[type[PackedGated]] = PackedGated

    def __init__(self, library: ctypes.CDLL, cores: Sequence[int] = ()) -> None:
        """`cores`: the core of each thread of the library's thread pool. Empty: threads are not pinned."""
        self._cores = cores
        self.library = library
        self._sampler = Sampler(library)
        self._attention = Attention(library)
        self.multiply = Multiply(library)
        self.activate = Activate(library)
        self.add = Add(library)

    def enter(self) -> None:
        """Pin the calling thread to the first core. PyTorch computes in one thread from now on, because its
        own threads would inherit that core."""
        keep_freed_memory()
        if self._cores:
            torch.set_num_threads(1)
            os.sched_setaffinity(threading.get_native_id(), self._cores[:1])

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return self._linear(self.library, weight, bias, wide=dtype == torch.float32)

    def rough(self, weight: Tensor) -> Unary:
        return Int4Linear(self.library, weight, None, wide=True)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        return self._gated(self.library, weight, bias, activation)

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        return CpuAbsorbed(self.library, up_key, up_value)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        products = [products_of(self, each, activation) for each in experts]
        packed = [(up, down) for up, down in products if isinstance(up, Packed) and isinstance(down, Packed)]
        if len(packed) == len(products):
            return CpuMixture(self.library, packed, activation)
        return ReferenceMixture((activating(self, up, activation), down) for up, down in products)

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        return CpuRoute(self.library, routing, score_correction_bias)

    def norm(self, weight: Tensor, eps: float) -> CpuNorm:
        return CpuNorm(self.library, weight, eps)

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        return FORMATS[name](dtype)

    def begin(self, step: StepMetadata) -> CpuStep:
        return self._attention.begin(step)

    def copies(self, caches: Sequence[Cache]) -> Copies:
        return partial(copy_blocks, caches)

    def sample(
        self,
        logits: Tensor,
        slots: Int32s,
        device_slots: Tensor,
        positions: Int32s,
        state: SamplingState,
        allowed: Allowed | None = None,
    ) -> Sampled:
        return self._sampler(logits, slots, positions, state, allowed)


class OneDnnKernels(CpuKernels):
    """With products by oneDNN."""

    def enter(self) -> None:
        """PyTorch's threads and the thread pool's compute on the same cores, one after the other."""
        keep_freed_memory()
        self.library.quire_take_turns()

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return OneDnnLinear(weight, bias, keeps_rows, wide=dtype == torch.float32)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        return ReferenceGated(OneDnnLinear(weight, bias), activation)


class QuantizedKernels(CpuKernels):
    """With weights of int8. Each product quantizes its activations to int8."""

    _linear = QuantizedLinear
    _gated: ClassVar[type[PackedGated]] = QuantizedGated


class CodedKernels(CpuKernels):
    """With a checkpoint's codes, which are dequantized within the product. Weights are `CodedWeight`."""

    _linear = CodedLinear
    _gated = CodedGated


class KeptKernels(KeptWeights, CpuKernels):
    """With a checkpoint's quantized weights as they are, and others plain."""

    def __init__(self, library: ctypes.CDLL, cores: Sequence[int] = ()) -> None:
        super().__init__(library, cores)
        self.kept = kept_by(library)


class KeptOneDnnKernels(KeptKernels, OneDnnKernels):
    """As `KeptKernels`, with plain products by oneDNN."""


class Int4Kernels(Int4Weights, QuantizedKernels):
    """With weights of 4 bits, and 8 bits where `Int4Weights` says so."""

    _gated = Int4Gated
    takes_shifts = True

    def _int4(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return Int4Linear(self.library, weight, bias)


def kept_by(library: ctypes.CDLL) -> Mapping[Kind, Kernels]:
    """Back ends of weights that stay as a checkpoint has them.

    Those of int8 with a scale for each output are codes, too. `QuantizedKernels` would round a token's
    activations with one scale, to which a few large ones leave the others little; and what has been rounded
    cannot be rotated without rounding it again.
    """
    return {"int4": Int4Kernels(library), "coded": CodedKernels(library)}
