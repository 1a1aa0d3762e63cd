"""Matrix products y = x W^T + b of the C++ kernels: weights packed into panels (`src/panels.h`).

What a row comes to depends neither on the rows beside it nor on the number of threads, bit by bit: a
sequence continues with the same tokens whatever runs with it.
"""

import ctypes

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES, address

COLUMNS = 32
"""Columns of a panel; `src/panels.h` says the same."""

ACTIVATIONS = {"none": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3}
"""What the library calls an activation; `src/activation.h` has them in this order."""


class Matrix(ctypes.Structure):
    """A packed matrix, as `src/linear.cpp` sees it."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    )


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what the functions take."""
    matrix = numbers = ctypes.c_void_p
    library.quire_pack.argtypes = [matrix, numbers, numbers]
    library.quire_pack.restype = None
    library.quire_linear.argtypes = [matrix, numbers, ctypes.c_int64, numbers, ctypes.c_int]
    library.quire_linear.restype = None
    library.quire_rows.argtypes = [matrix, numbers, ctypes.c_int64, numbers]
    library.quire_rows.restype = ctypes.c_int64


class _Packed:
    """Weights in panels and the calls that read them."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        rows, self.in_features = weight.shape
        gated = activation != "none"
        if gated and rows % 2:
            raise ValueError(f"gates and ups are not equally many: {rows} rows")
        self.out_features = rows // 2 if gated else rows
        self.dtype = weight.dtype
        weight = weight.contiguous()
        words = -(-self.in_features * weight.element_size() // 4)
        panels = -(-rows // COLUMNS) if not gated else -(-self.out_features // (COLUMNS // 2))
        self._panels = torch.empty(panels * words * COLUMNS, dtype=torch.int32)
        self._bias = None if bias is None else in_columns(bias.float(), panels, gated)
        self._matrix = Matrix(
            address(self._panels),
            address(self._bias),
            self.in_features,
            self.out_features,
            DTYPES[weight.dtype],
            ACTIVATIONS[activation],
        )
        self._itself = ctypes.byref(self._matrix)
        declare(library)
        library.quire_pack(self._itself, weight.data_ptr(), self._panels.data_ptr())
        self._multiply = library.quire_linear

    @property
    def nbytes(self) -> int:
        """Bytes that the packed weights take."""
        return self._panels.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out], in the type of the weights."""
        x = self._checked(x)
        rows = x.shape[0]
        out = torch.empty((rows, self.out_features), dtype=self.dtype)
        self._multiply(self._itself, x.data_ptr(), rows, out.data_ptr(), 0)
        return out

    def _checked(self, x: Tensor) -> Tensor:
        if x.dtype is not self.dtype or x.shape[1] != self.in_features:
            raise ValueError(f"expected {self.dtype} [rows, {self.in_features}], not {x.dtype} {x.shape}")
        return x if x.is_contiguous() else x.contiguous()


class PackedLinear(_Packed):
    """A linear layer; weight [out, in], float32 or bfloat16. The weight given may be freed."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(library, weight, bias, "none")
        self._take = library.quire_rows

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """out [rows, out] += x W^T + b; rounded once. `out` must be contiguous."""
        x = self._checked(x)
        if out.dtype is not self.dtype or out.shape != (len(x), self.out_features) or not out.is_contiguous():
            raise ValueError(f"expected contiguous {self.dtype} [{len(x)}, {self.out_features}] to add to")
        self._multiply(self._itself, x.data_ptr(), len(x), out.data_ptr(), 1)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [n, in] of the weight as it was, for embeddings tied to the head; ids integers [n]."""
        ids = ids.long().contiguous()
        out = torch.empty((len(ids), self.in_features), dtype=self.dtype)
        if self._take(self._itself, ids.data_ptr(), len(ids), out.data_ptr()):
            raise IndexError(f"ids beyond the {self.out_features} rows")
        return out


class PackedGated(_Packed):
    """activation(x Wg^T + bg) * (x Wu^T + bu): [rows, in] to [rows, inter].

    weight [2 * inter, in], bias [2 * inter]: gates first, then ups. activation: silu, gelu_tanh, gelu.
    """

    def __init__(
        self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None, activation: str = "silu"
    ) -> None:
        super().__init__(library, weight, bias, activation)


def in_columns(numbers: Tensor, panels: int, gated: bool) -> Tensor:
    """Numbers of the outputs in the order of the panels' columns [panels * 32]; zero where there is none."""
    out = numbers.new_zeros(panels * COLUMNS)
    if gated:
        halves = out.view(panels, 2, COLUMNS // 2)
        for side, half in enumerate(numbers.chunk(2)):
            padded = half.new_zeros(panels * COLUMNS // 2)
            padded[: len(half)] = half
            halves[:, side] = padded.view(panels, -1)
    else:
        out[: len(numbers)] = numbers
    return out
