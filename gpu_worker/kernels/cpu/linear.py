"""Products with weights that are packed once: see src/linear.cpp."""

import ctypes
from ctypes import c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.memory import HugePages

PANEL = 32
WRITE, ADD, GATED = 0, 1, 2


class _Packed:
    """Weights in panels, and the call that multiplies with them."""

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: HugePages,
        weight: Tensor,
        bias: Tensor | None,
        gated: bool,
        wide: bool,
    ) -> None:
        rows, self._inputs = weight.shape
        self._outputs = rows // 2 if gated else rows
        self._dtype = DTYPES[weight.dtype]
        self._padded = -(-self._inputs // (self._dtype + 1)) * (self._dtype + 1)
        self._wide = wide
        self._out_dtype = torch.float32 if wide else weight.dtype
        per_panel = PANEL // 2 if gated else PANEL
        panels = -(-self._outputs // per_panel)
        weight = weight.contiguous()
        self._panels = memory.take(panels * PANEL * self._padded, weight.dtype)
        library.quire_pack.argtypes = (c_void_p, c_int64, c_int64, c_int64, c_int, c_int, c_void_p)
        library.quire_pack(
            weight.data_ptr(), rows, self._inputs, self._padded, self._dtype, gated, self._panels.data_ptr()
        )
        self._bias = None if bias is None else _in_panels(bias.float(), panels, gated)
        self._address, self._bias_address = self._panels.data_ptr(), address(self._bias)
        self._library = library
        self._linear = library.quire_linear
        self._linear.argtypes = (
            *(c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64),
            *(c_int, c_int, c_int, c_void_p),
        )
        self._linear.restype = None

    @property
    def nbytes(self) -> int:
        """Memory of the packed weights."""
        return self._panels.nbytes

    def _multiply(self, hidden: Tensor, kind: int, out: Tensor, wide: bool) -> None:
        if self._padded != self._inputs:
            hidden = torch.nn.functional.pad(hidden, (0, self._padded - self._inputs))
        self._linear(
            hidden.data_ptr(),
            len(hidden),
            self._address,
            self._bias_address,
            self._padded,
            self._outputs,
            self._dtype,
            kind,
            wide,
            out.data_ptr(),
        )


class PackedLinear(_Packed):
    """See `Linear`. Weights and inputs float32 or bfloat16; the results' type is the inputs' or float32."""

    def __init__(
        self,
        library: ctypes.CDLL,
        memory: HugePages,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(library, memory, weight, bias, gated=False, wide=dtype == torch.float32)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = torch.empty((len(hidden), self._outputs), dtype=self._out_dtype)
        self._multiply(hidden, WRITE, out, self._wide)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        self._multiply(hidden, ADD, residual, False)

    def rows(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        out = torch.empty((len(numbers), self._inputs), dtype=self._panels.dtype)
        unpack = self._library.quire_unpack
        unpack.argtypes = (c_void_p, c_int64, c_int64, c_int, c_void_p, c_int64, c_void_p)
        unpack(
            self._address,
            self._inputs,
            self._padded,
            self._dtype,
            numbers.data_ptr(),
            len(numbers),
            out.data_ptr(),
        )
        return out


class PackedGated(_Packed):
    """See `Kernels.gated`."""

    def __init__(
        self, library: ctypes.CDLL, memory: HugePages, weight: Tensor, bias: Tensor | None = None
    ) -> None:
        super().__init__(library, memory, weight, bias, gated=True, wide=False)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = torch.empty((len(hidden), self._outputs), dtype=self._out_dtype)
        self._multiply(hidden, GATED, out, False)
        return out


def _in_panels(bias: Tensor, panels: int, gated: bool) -> Tensor:
    """A bias in the order in which panels have their outputs, padded with zeros."""
    halves = bias.chunk(2) if gated else (bias,)
    width = PANEL // len(halves)
    parts = []
    for half in halves:
        padded = half.new_zeros(panels * width)
        padded[: len(half)] = half
        parts.append(padded.view(panels, width))
    return torch.cat(parts, dim=1).contiguous()
