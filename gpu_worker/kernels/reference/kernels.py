"""The back end in plain PyTorch: it runs on any device, and other back ends are tested against it."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Cache, Copies, KvFormat, StepAttention, StepMetadata
from gpu_worker.kernels.products import (
    Absorbed,
    Clamped,
    Expert,
    Gated,
    Linear,
    Mixture,
    Norm,
    Route,
    Routing,
    Unary,
)
from gpu_worker.kernels.reference.absorbed import ReferenceAbsorbed
from gpu_worker.kernels.reference.activations import ACTIVATIONS
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.copies import copy_blocks
from gpu_worker.kernels.reference.kv import FORMATS
from gpu_worker.kernels.reference.mixture import ReferenceMixture
from gpu_worker.kernels.reference.route import ReferenceRoute
from gpu_worker.kernels.reference.sampling import sample
from gpu_worker.kernels.sampling import Allowed, Sampled, SamplingState


class ReferenceKernels:
    """See `Kernels`."""

    replayable = False
    """Whether a decode step's launches depend on its number of rows alone, so that CUDA graphs can replay
    them."""
    rough: Callable[[Tensor], Unary] | None = None
    """See `Kernels.rough`."""
    reason = ""
    """Why this computes where faster kernels were to; empty if it was asked for."""

    def enter(self) -> None:
        """PyTorch's threads work for any calling thread."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        return ReferenceLinear(weight, bias, dtype or weight.dtype)

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        return ReferenceGated(self.linear(weight, bias), activation)

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        return ReferenceAbsorbed(up_key, up_value)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        return ReferenceMixture.of(self, experts, activation)

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        return ReferenceRoute(routing, score_correction_bias)

    def norm(self, weight: Tensor, eps: float) -> Norm:
        return ReferenceNorm(weight, eps)

    def multiply(self, hidden: Tensor, gates: Tensor, activation: str) -> None:
        gates = gates.float()
        if activation != "none":
            gates = silu(gates) if activation == "silu" else gates.sigmoid()
        hidden.copy_(hidden.float() * gates)

    def activate(self, hidden: Tensor, activation: str) -> None:
        if activation == "sigmoid":
            hidden.sigmoid_()
        elif activation == "tanh":
            hidden.tanh_()
        else:
            hidden.copy_(ACTIVATIONS[activation](hidden))

    def add(self, into: Tensor, numbers: Tensor, gates: Tensor | None = None) -> None:
        into += numbers if gates is None else numbers * gates.sigmoid()

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        return FORMATS[name](dtype)

    def begin(self, step: StepMetadata) -> StepAttention:
        return ReferenceStep(step)

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
        return sample(logits, slots, device_slots, positions, state, allowed)


class ReferenceLinear:
    """See `Linear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self._dtype = weight, bias, dtype

    def __call__(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self._weight, self._bias).to(self._dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual += linear(hidden, self._weight, self._bias)

    def rows(self, numbers: Tensor) -> Tensor:
        return self._weight[numbers]


class WideLinear:
    """A `Linear` whose result is float32 until it is rounded once, alone or with the residual."""

    _dtype: torch.dtype
    """Of results."""

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._product(hidden).to(self._dtype)

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual.copy_(self._product(hidden) + residual)

    def _product(self, hidden: Tensor) -> Tensor:
        """float32 [tokens, out]."""
        raise NotImplementedError


class ReferenceGated:
    """See `Kernels.gated`: the activation, behind any product."""

    def __init__(self, product: Unary, activation: str) -> None:
        self._product, self._activate = product, ACTIVATIONS[activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.activated(self.parts(hidden))

    def parts(self, hidden: Tensor) -> Tensor:
        return self._product(hidden)

    def activated(self, parts: Tensor) -> Tensor:
        gate, up = parts.chunk(2, dim=-1)
        return self._activate(gate) * up


class ReferenceNorm:
    """See `Kernels.norm`."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps = weight, eps

    def __call__(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        return (self._weight * normed.to(self._weight.dtype)).to(hidden.dtype)

    def each(self, rows: Tensor) -> None:
        normalize_each(self, len(self._weight), rows)


def normalize_each(norm: Unary, size: int, rows: Tensor) -> None:
    """`Norm.each` for a norm of `size` numbers that returns new rows."""
    rows.copy_(norm(rows.contiguous().view(-1, size)).view(rows.shape))
