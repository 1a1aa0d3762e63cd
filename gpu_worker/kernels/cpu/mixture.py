"""Mixtures of experts by the library (`src/mixture.cpp`), with weights of any type. Tapes repeat them."""

import ctypes
from collections.abc import Iterable
from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.linear import Packed
from gpu_worker.kernels.cpu.tape import Kernel
from gpu_worker.kernels.products import UNGATED, Clamped, Routing


class _Expert(ctypes.Structure):
    """The matrices of an expert, and the library's functions that multiply by them."""

    _fields_ = (
        ("up", ctypes.c_void_p),
        ("multiply_up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("multiply_down", ctypes.c_void_p),
    )


class _Mixture(ctypes.Structure):
    """A mixture, as the library reads it."""

    _fields_ = (
        ("experts", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("between", ctypes.c_int32),
        ("alpha", ctypes.c_float),
        ("limit", ctypes.c_float),
    )


class CpuMixture:
    """See `Mixture`."""

    def __init__(
        self, library: ctypes.CDLL, experts: Iterable[tuple[Packed, Packed]], activation: str | Clamped
    ) -> None:
        """`experts`: of each the product with gate and up, activated unless `activation` is of another kind
        than those of `gated`, and the product with down."""
        self._products = list(experts)
        first, down = self._products[0]
        self.dtype, self._size = first.dtype, first.in_features
        clamped = activation if isinstance(activation, Clamped) else Clamped(0.0, 0.0)
        self._experts = (_Expert * len(self._products))(
            *(_Expert(*_product(library, up), *_product(library, down)) for up, down in self._products)
        )
        self._mixture = _Mixture(
            experts=ctypes.addressof(self._experts),
            count=len(self._products),
            size=self._size,
            inner=down.in_features,
            type=DTYPES[self.dtype],
            between=1 if isinstance(activation, Clamped) else 2 if activation == UNGATED else 0,
            alpha=clamped.alpha,
            limit=clamped.limit,
        )
        rows = (c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p)
        self._mix = Kernel(library, "quire_mixture", c_void_p, *rows)

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor) -> Tensor:
        """The results of a token's experts are added up in the order of the experts' numbers."""
        if hidden.dtype is not self.dtype or hidden.shape[1] != self._size:
            raise ValueError(f"expected {self.dtype} [rows, {self._size}], not {hidden.dtype} {hidden.shape}")
        hidden, weights = hidden.contiguous(), routing_weights.contiguous()
        selected = selected_experts.contiguous()
        sums = torch.empty(hidden.shape, dtype=torch.float32)
        self._mix(
            ctypes.addressof(self._mixture),
            hidden.data_ptr(),
            len(hidden),
            weights.data_ptr(),
            selected.data_ptr(),
            selected.shape[1],
            sums.data_ptr(),
        )
        return sums


def _product(library: ctypes.CDLL, packed: Packed) -> tuple[int, int]:
    """Addresses of the matrix and of the library's function that multiplies by it."""
    function = ctypes.cast(library[packed.symbol], ctypes.c_void_p).value
    assert function is not None
    return packed.itself, function


class _Routing(ctypes.Structure):
    """See `Routing`, as the library reads it."""

    _fields_ = (
        ("corrections", ctypes.c_void_p),
        ("experts", ctypes.c_int64),
        ("each", ctypes.c_int64),
        ("groups", ctypes.c_int64),
        ("top_groups", ctypes.c_int64),
        ("group_top", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("sigmoid", ctypes.c_int32),
        ("normalized", ctypes.c_int32),
    )


class CpuRoute:
    """See `Route`."""

    def __init__(self, library: ctypes.CDLL, routing: Routing, score_correction_bias: Tensor | None) -> None:
        self._corrections = None if score_correction_bias is None else score_correction_bias.contiguous()
        self._each = routing.experts_per_token
        self._routing = _Routing(
            corrections=address(self._corrections),
            each=self._each,
            groups=routing.num_groups,
            top_groups=routing.top_k_groups,
            group_top=routing.group_top_k,
            scale=routing.scale,
            sigmoid=routing.scoring_func == "sigmoid",
            normalized=routing.normalized,
        )
        self._route = Kernel(library, "quire_route", c_void_p, c_void_p, c_int64, c_void_p, c_void_p)

    def __call__(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Of equal experts the first is selected."""
        logits = router_logits.contiguous()
        tokens, self._routing.experts = logits.shape
        if self._each > self._routing.experts:
            raise ValueError(f"{self._each} of {self._routing.experts} experts cannot be selected")
        weights = torch.empty((tokens, self._each), dtype=torch.float32)
        selected = torch.empty((tokens, self._each), dtype=torch.int64)
        self._route(
            ctypes.addressof(self._routing),
            logits.data_ptr(),
            tokens,
            weights.data_ptr(),
            selected.data_ptr(),
        )
        return weights, selected


class Add:
    """See `Kernels.add`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        rows = (c_int64, c_int64, c_void_p, c_void_p, c_void_p)
        self._add = Kernel(library, "quire_add", c_int, c_int, *rows)

    def __call__(self, into: Tensor, numbers: Tensor, gates: Tensor | None = None) -> None:
        if not into.is_contiguous() or into.shape != numbers.shape:
            raise ValueError(f"{list(numbers.shape)} cannot be added to {list(into.shape)} in place")
        numbers, gates = numbers.contiguous(), None if gates is None else gates.contiguous()
        self._add(
            DTYPES[into.dtype],
            DTYPES[numbers.dtype],
            *into.shape,
            into.data_ptr(),
            numbers.data_ptr(),
            address(gates),
        )
