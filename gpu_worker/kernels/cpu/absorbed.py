"""The products of latent attention by the C++ kernels: see `quire_heads` in `src/linear.cpp`.

As in `linear.py`, the result of a row depends neither on other rows nor on the number of threads.
"""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.linear import COLUMNS, MEMORY, Matrix
from gpu_worker.kernels.cpu.tape import Kernel


class CpuAbsorbed:
    """See `Absorbed`."""

    def __init__(self, library: ctypes.CDLL, up_key: Tensor, up_value: Tensor) -> None:
        self.queries = PackedHeads(library, up_key.mT)
        self.values = PackedHeads(library, up_value.mT)


class PackedHeads:
    """Products with a matrix of each head: [rows, heads, in] to [rows, heads, out]."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor) -> None:
        """`weight`: [heads, out, in], float32 or bfloat16. It may be freed."""
        self._heads, self._width, size = weight.shape
        self._matrix = Matrix(in_features=size, width=self._width, type=DTYPES[weight.dtype])
        words = -(-self._width // COLUMNS) * -(-size * weight.element_size() // 4) * COLUMNS
        self._panels = MEMORY.take(self._heads * words)
        for number, own in enumerate(weight):
            to = ctypes.c_void_p((address(self._panels) or 0) + number * words * 4)
            rows = own.contiguous()
            library.quire_linear_pack(ctypes.byref(self._matrix), ctypes.c_void_p(address(rows)), to)
        self._matrix.panels = address(self._panels)
        self._dtype, self._in = weight.dtype, size
        self._multiply = Kernel(library, "quire_heads", c_void_p, c_int64, c_void_p, c_int64, c_void_p)

    def __call__(self, x: Tensor) -> Tensor:
        rows = len(x)
        if x.dtype is not self._dtype or x.shape != (rows, self._heads, self._in):
            raise ValueError(
                f"expected {self._dtype} [rows, {self._heads}, {self._in}], not {x.dtype} {x.shape}"
            )
        x, out = x.contiguous(), torch.empty((rows, self._heads, self._width), dtype=x.dtype)
        itself = ctypes.addressof(self._matrix)
        self._multiply(itself, self._heads, x.data_ptr(), rows, out.data_ptr())
        return out
