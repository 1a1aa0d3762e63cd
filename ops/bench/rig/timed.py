"""A back end that wraps another one and measures the time of each kind of kernel."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.interface import Kernels

PARTS = ("projections", "attention", "rotation and KV write", "norms", "embedding", "head", "sampling")

_KERNELS = {"multiply": "attention", "activate": "mlp", "add": "projections", "sample": "sampling"}
"""The part of each method of `Kernels` that computes."""
_STEP = {
    **dict.fromkeys(("attend", "attend_selected", "convolve", "delta_rule", "state_space"), "attention"),
    **dict.fromkeys(("rotate_and_write", "write_latent"), "rotation and KV write"),
    "select": "selection",
}
"""The part of each method of `StepAttention`. Recurrences count as attention."""


class TimedKernels:
    """See `Kernels`. For CPUs alone, where the work is done when a call returns."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.seconds: dict[str, float] = defaultdict(float)
        """Seconds of each of `PARTS` since `clear`."""

    def clear(self) -> None:
        self.seconds.clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._kernels, name)
        return partial(self._timed, _KERNELS[name], found) if name in _KERNELS else found

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Any:
        # Only the head and routers ask for a type other than their inputs'. A router takes little time.
        part = "projections" if dtype is None else "head"
        product = self._kernels.linear(weight, bias, dtype, keeps_rows)
        return _Timed(self._timed, product, part, {"rows": "embedding"})

    def gated(self, *given: Any) -> Any:
        return _Timed(self._timed, self._kernels.gated(*given), "projections", {})

    def mixture(self, *given: Any) -> Any:
        return partial(self._timed, "projections", self._kernels.mixture(*given))

    def route(self, *given: Any) -> Any:
        return partial(self._timed, "projections", self._kernels.route(*given))

    def norm(self, weight: Tensor, eps: float) -> Any:
        return _Timed(self._timed, self._kernels.norm(weight, eps), "norms", {})

    def begin(self, step: StepMetadata) -> Any:
        return _Timed(self._timed, self._kernels.begin(step), "", _STEP)

    def _timed(self, part: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments, **named)
        self.seconds[part] += time.perf_counter() - started
        return result


class _Timed:
    """What a back end returned. Its calls and methods are timed; its other attributes are what they were."""

    def __init__(self, timed: Callable[..., Any], wrapped: Any, part: str, parts: Mapping[str, str]) -> None:
        """`part`: of calls, and of the methods that `parts` does not name."""
        self._timed, self._wrapped, self._part, self._parts = timed, wrapped, part, parts

    def __call__(self, *arguments: Any) -> Any:
        return self._timed(self._part, self._wrapped, *arguments)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if callable(found):
            found = partial(self._timed, self._parts.get(name, self._part), found)
        setattr(self, name, found)  # once for each name
        return found
