"""Matrix products y = x W^T + b of the C++ kernels, with weights packed into panels (`src/panels.h`).

The result of a row depends neither on other rows nor on the number of threads, bit by bit. So a sequence has
the same tokens whatever runs beside it.
"""

import ctypes
from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.layers import ACTIVATIONS
from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.tape import Kernel
from gpu_worker.machine.huge_pages import Memory

COLUMNS = 32
"""Columns of a panel, as in `src/panels.h`."""

MEMORY = Memory()
"""Where the panels of all weights lie."""


class Matrix(ctypes.Structure):
    """A packed weight matrix, as the library reads it (`src/matrix.h`)."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("corrections", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("wide", ctypes.c_int32),
        ("shifts", ctypes.c_void_p),
        ("shift_groups", ctypes.c_int64),
        ("codes", ctypes.c_void_p),
        ("rotates", ctypes.c_int32),
    )


class Packed:
    """Weights in panels, and the product with them. Subclasses define what a panel holds."""

    symbol = "quire_linear"
    """The library's function that multiplies."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None,
        activation: str = "none",
        wide: bool = False,
    ) -> None:
        rows, self.in_features = weight.shape
        self.gated = activation != "none"
        if self.gated and rows % 2:
            raise ValueError(f"gates and ups are not equally many: {rows} rows")
        self.out_features = rows // 2 if self.gated else rows
        self.dtype = weight.dtype
        self.count = -(-self.out_features // (COLUMNS // 2 if self.gated else COLUMNS))
        self._library = library
        self._bias = None if bias is None else self._in_columns(bias.float())
        self._matrix = Matrix(
            bias=address(self._bias),
            in_features=self.in_features,
            width=self.out_features,
            type=DTYPES[self.dtype],
            activation=ACTIVATIONS[activation],
            wide=wide,
        )
        self.out_dtype = torch.float32 if wide else self.dtype
        self.itself = ctypes.addressof(self._matrix)
        """Address of the matrix, for the library's functions."""
        self._pack(weight)
        self._multiply = Kernel(library, self.symbol, c_void_p, c_void_p, c_int64, c_void_p, c_int)

    def _pack(self, weight: Tensor) -> None:
        self._take_panels(self.in_features * weight.element_size())
        weight = weight.contiguous()
        pack = self._library.quire_linear_pack
        pack(
            ctypes.byref(self._matrix),
            ctypes.c_void_p(address(weight)),
            ctypes.c_void_p(address(self._panels)),
        )

    def _take_panels(self, row_bytes: int) -> None:
        self._panels = MEMORY.take(self.count * -(-row_bytes // 4) * COLUMNS)
        self._matrix.panels = address(self._panels)

    def _in_columns(self, numbers: Tensor) -> Tensor:
        """Numbers of the outputs in the order of the panels' columns, zero for columns without an output."""
        if not self.gated:
            columns = numbers.new_zeros(self.count * COLUMNS)
            columns[: len(numbers)] = numbers
            return columns
        halves = numbers.new_zeros(2, self.count * COLUMNS // 2)
        halves[:, : self.out_features] = numbers.view(2, -1)
        return halves.view(2, self.count, -1).transpose(0, 1).flatten()

    @property
    def nbytes(self) -> int:
        """Bytes that the packed weights take."""
        return self._panels.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out], in the original type of the weights, or float32 if `wide`."""
        x = self._checked(x)
        rows = x.shape[0]
        out = torch.empty((rows, self.out_features), dtype=self.out_dtype)
        self._multiply(self.itself, x.data_ptr(), rows, out.data_ptr(), 0)
        return out

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """Add the product to out [rows, out], rounded only once. `out` must be contiguous."""
        x = self._checked(x)
        rows = x.shape[0]
        if (
            out.dtype is not self.out_dtype
            or out.shape != (rows, self.out_features)
            or not out.is_contiguous()
        ):
            raise ValueError(f"expected contiguous {self.out_dtype} [{rows}, {self.out_features}] to add to")
        self._multiply(self.itself, x.data_ptr(), rows, out.data_ptr(), 1)

    def _checked(self, x: Tensor) -> Tensor:
        if x.dtype is not self.dtype or x.shape[1] != self.in_features:
            raise ValueError(f"expected {self.dtype} [rows, {self.in_features}], not {x.dtype} {x.shape}")
        return x if x.is_contiguous() else x.contiguous()


class PackedLinear(Packed):
    """See `Linear`; weight [out, in], float32 or bfloat16. The weight given may be freed.

    `wide`: results are float32, not rounded to the inputs' type.
    """

    def __init__(
        self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None, wide: bool = False
    ) -> None:
        super().__init__(library, weight, bias, wide=wide)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [n, in] of the weight, for embeddings tied to the head. `ids`: integers [n].

        Raises `IndexError` for an id without a row.
        """
        ids = ids.long().contiguous()
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.out_features:
            raise IndexError(f"ids beyond the {self.out_features} rows")
        out = torch.empty((len(ids), self.in_features), dtype=self.dtype)
        take = self._library[f"{self.symbol}_rows"]
        take.argtypes = (c_void_p, c_void_p, c_int64, c_void_p)
        take.restype = None
        take(self.itself, ids.data_ptr(), len(ids), out.data_ptr())
        return out


class PackedGated(Packed):
    """activation(x Wg^T + bg) * (x Wu^T + bu): [rows, in] to [rows, inner]. See `Gated`.

    weight [2 * inner, in], bias [2 * inner]: gates first, then ups. activation: silu, gelu_tanh, gelu.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str = "silu",
    ) -> None:
        super().__init__(library, weight, bias, activation)
        # The same panels as a matrix without gates: half of a panel's columns are gates, half their ups.
        self._whole = Matrix.from_buffer_copy(self._matrix)
        self._whole.activation, self._whole.wide = ACTIVATIONS["none"], True
        self._whole.width = self.count * COLUMNS
        self._activation = ACTIVATIONS[activation]
        rows = (c_void_p, c_int64)
        self._activate = Kernel(library, "quire_multiply", c_int, c_int, c_int64, c_int64, *rows, *rows)

    def parts(self, x: Tensor) -> Tensor:
        """float32 [rows, 2 * inner]: gates, then ups."""
        x = self._checked(x)
        out = torch.empty((len(x), self.count, 2, COLUMNS // 2))
        self._multiply(ctypes.addressof(self._whole), x.data_ptr(), len(x), out.data_ptr(), 0)
        halves = out.transpose(1, 2).flatten(2)[..., : self.out_features]
        return halves.flatten(1)

    def activated(self, parts: Tensor) -> Tensor:
        """[rows, inner], in the original type of the weights."""
        gate, up = parts.chunk(2, dim=-1)
        self._activate(
            DTYPES[torch.float32],
            self._activation,
            *up.shape,
            up.data_ptr(),
            up.stride(0),
            gate.data_ptr(),
            gate.stride(0),
        )
        return up.to(self.dtype)
