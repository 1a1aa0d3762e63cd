"""A back end that wraps another one and measures the time of each kind of kernel."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import (
    FULL_ATTENTION,
    AttentionSpec,
    Cache,
    Copies,
    KvFormat,
    LayerCache,
    Rotary,
    StepAttention,
    StepMetadata,
)
from gpu_worker.kernels.interface import Kernels
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
)
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache, StateSpace
from gpu_worker.kernels.sampling import Allowed, Sampled, SamplingState

PARTS = ("projections", "attention", "rotation and KV write", "norms", "embedding", "head", "sampling")


class TimedKernels:
    """See `Kernels`. For CPUs alone, where the work is done when a call returns."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels, self.rough = kernels, kernels.rough
        self.seconds: dict[str, float] = defaultdict(float)
        """Seconds of each of `PARTS` since `clear`. Recurrences count as attention."""

    def clear(self) -> None:
        self.seconds.clear()

    def enter(self) -> None:
        self._kernels.enter()

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        # Only the head and routers ask for a type other than their inputs'. A router takes little time.
        part = "projections" if dtype is None else "head"
        return _TimedLinear(self._timed, part, self._kernels.linear(weight, bias, dtype, keeps_rows))

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        return _TimedGated(self._timed, self._kernels.gated(weight, bias, activation))

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        return self._kernels.absorbed(up_key, up_value)

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        mixture = self._kernels.mixture(experts, count, activation)
        return lambda *arguments: self._timed("projections", mixture, *arguments)

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        route = self._kernels.route(routing, score_correction_bias)
        return lambda router_logits: self._timed("projections", route, router_logits)

    def norm(self, weight: Tensor, eps: float) -> Norm:
        return _TimedNorm(self._timed, self._kernels.norm(weight, eps))

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        return self._kernels.kv_format(name, dtype)

    def begin(self, step: StepMetadata) -> StepAttention:
        return _TimedStep(self._timed, self._kernels.begin(step))

    def multiply(self, hidden: Tensor, gates: Tensor, activation: str) -> None:
        self._timed("attention", self._kernels.multiply, hidden, gates, activation)

    def activate(self, hidden: Tensor, activation: str) -> None:
        self._timed("mlp", self._kernels.activate, hidden, activation)

    def add(self, into: Tensor, numbers: Tensor, gates: Tensor | None = None) -> None:
        self._timed("projections", self._kernels.add, into, numbers, gates)

    def copies(self, caches: Sequence[Cache]) -> Copies:
        return self._kernels.copies(caches)

    def sample(
        self,
        logits: Tensor,
        slots: Int32s,
        device_slots: Tensor,
        positions: Int32s,
        state: SamplingState,
        allowed: Allowed | None = None,
    ) -> Sampled:
        arguments = (logits, slots, device_slots, positions, state, allowed)
        sampled: Sampled = self._timed("sampling", self._kernels.sample, *arguments)
        return sampled

    def _timed(self, part: str, function: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        self.seconds[part] += time.perf_counter() - started
        return result


class _TimedGated:
    """See `Gated`."""

    def __init__(self, timed: Callable[..., Any], product: Gated) -> None:
        self._timed, self._product = timed, product

    def __call__(self, hidden: Tensor, /) -> Tensor:
        result: Tensor = self._timed("projections", self._product, hidden)
        return result

    def parts(self, hidden: Tensor, /) -> Tensor:
        result: Tensor = self._timed("projections", self._product.parts, hidden)
        return result

    def activated(self, parts: Tensor, /) -> Tensor:
        result: Tensor = self._timed("projections", self._product.activated, parts)
        return result


class _TimedLinear:
    """See `Linear`."""

    def __init__(self, timed: Callable[..., Any], part: str, product: Linear) -> None:
        self._timed, self._part, self._product = timed, part, product

    def __call__(self, hidden: Tensor, /) -> Tensor:
        result: Tensor = self._timed(self._part, self._product, hidden)
        return result

    def add_to(self, hidden: Tensor, residual: Tensor, /) -> None:
        self._timed(self._part, self._product.add_to, hidden, residual)

    def rows(self, numbers: Tensor, /) -> Tensor:
        result: Tensor = self._timed("embedding", self._product.rows, numbers)
        return result


class _TimedNorm:
    """See `Norm`."""

    def __init__(self, timed: Callable[..., Any], norm: Norm) -> None:
        self._timed, self._norm = timed, norm

    def __call__(self, hidden: Tensor, /) -> Tensor:
        result: Tensor = self._timed("norms", self._norm, hidden)
        return result

    def each(self, rows: Tensor, /) -> None:
        self._timed("norms", self._norm.each, rows)


class _TimedStep:
    """See `StepAttention`."""

    def __init__(self, timed: Callable[..., Any], step: StepAttention) -> None:
        self._timed, self._step = timed, step
        self.positions = step.positions

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        query: Tensor = self._timed("rotation and KV write", self._step.rotate_and_write, qkv, rotary, cache)
        return query

    def write_latent(self, query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache) -> None:
        self._timed("rotation and KV write", self._step.write_latent, query, latent, rotary, cache)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        mixed: Tensor = self._timed("attention", self._step.attend, query, cache, spec, slopes, sink_logits)
        return mixed

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        mixed: Tensor = self._timed("attention", self._step.convolve, inputs, filters, cache)
        return mixed

    def delta_rule(self, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache) -> Tensor:
        mixed: Tensor = self._timed("attention", self._step.delta_rule, qkv, gates, rule, cache)
        return mixed

    def state_space(self, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache) -> Tensor:
        mixed: Tensor = self._timed("attention", self._step.state_space, inputs, steps, space, cache)
        return mixed

    def select(self, query: Tensor, weights: Tensor, cache: LayerCache, top_k: int) -> None:
        self._timed("selection", self._step.select, query, weights, cache, top_k)

    def attend_selected(self, query: Tensor, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        mixed: Tensor = self._timed("attention", self._step.attend_selected, query, cache, spec)
        return mixed
