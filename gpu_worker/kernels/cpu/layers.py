"""RMS norm by the C++ kernels: see `src/layers.cpp`."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES
from gpu_worker.kernels.reference.kernels import normalize_each


class CpuNorm:
    """See `Kernels.norm`."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, eps: float) -> None:
        self._weight, self._eps, self._size = weight, eps, len(weight)
        self._address, self._wide = weight.data_ptr(), weight.dtype == torch.float32
        self._norm = library.quire_norm
        self._norm.argtypes = (c_int, c_int, c_void_p, c_void_p, c_float, c_int64, c_int64, c_void_p)
        self._norm.restype = None

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
        normalize_each(self, self._size, rows)
