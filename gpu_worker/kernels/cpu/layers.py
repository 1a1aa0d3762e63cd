"""RMS norm, activations and gates by the C++ kernels: see `src/layers.cpp`."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES
from gpu_worker.kernels.cpu.tape import Kernel


class CpuNorm:
    """See `Kernels.norm`."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, eps: float) -> None:
        self._weight, self._eps, self._size = weight, eps, len(weight)
        self._address, self._wide = weight.data_ptr(), weight.dtype == torch.float32
        rows = (c_int, c_int, c_void_p, c_void_p, c_float, c_int64)
        self._norm = Kernel(library, "quire_norm", *rows, c_int64, c_void_p)
        self._norm_heads = Kernel(library, "quire_norm_heads", *rows, c_int64, c_int64, c_int64)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = torch.empty_like(hidden)
        self._norm(
            DTYPES[hidden.dtype],
            self._wide,
            hidden.data_ptr(),
            self._address,
            self._eps,
            hidden.shape[0],
            self._size,
            out.data_ptr(),
        )
        return out

    def each(self, rows: Tensor) -> None:
        if rows.stride(1) != 1:
            raise ValueError(f"the numbers of a row are {rows.stride(1)} apart")
        self._norm_heads(
            DTYPES[rows.dtype],
            self._wide,
            rows.data_ptr(),
            self._address,
            self._eps,
            rows.shape[0],
            rows.stride(0),
            rows.shape[1] // self._size,
            self._size,
        )


ACTIVATIONS = {
    "none": 0,
    "silu": 1,
    "gelu_tanh": 2,
    "gelu": 3,
    "sigmoid": 4,
    "relu": 5,
    "relu2": 6,
    "tanh": 7,
}
"""The library's numbers of activations, in the order of `src/activation.h`."""


class Multiply:
    """See `Kernels.multiply`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        rows = (c_void_p, c_int64)
        self._multiply = Kernel(library, "quire_multiply", c_int, c_int, c_int64, c_int64, *rows, *rows)

    def __call__(self, hidden: Tensor, gates: Tensor, activation: str) -> None:
        if hidden.stride(1) != 1 or gates.stride(1) != 1:
            raise ValueError("the numbers of a row do not lie side by side")
        self._multiply(
            DTYPES[hidden.dtype],
            ACTIVATIONS[activation],
            *hidden.shape,
            hidden.data_ptr(),
            hidden.stride(0),
            gates.data_ptr(),
            gates.stride(0),
        )


class Activate:
    """See `Kernels.activate`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._activate = Kernel(library, "quire_activate", c_int, c_int, c_int64, c_int64, c_void_p, c_int64)

    def __call__(self, hidden: Tensor, activation: str) -> None:
        if hidden.stride(1) != 1:
            raise ValueError("the numbers of a row do not lie side by side")
        number = ACTIVATIONS[activation]
        self._activate(DTYPES[hidden.dtype], number, *hidden.shape, hidden.data_ptr(), hidden.stride(0))
