"""Products of numbers of one byte on GPUs: PyTorch's matrix products, cuBLAS's, between two kernels.

    hidden [tokens, in] ──quantize_rows──▶ int8 or fp8 ──product──▶ int32 or float32 ──scale_rows──▶ out

See `reference/quantized.py`. Read and written beside the weights: activations once, as bytes twice, and the
sums, of four bytes each, twice; of one token that is little beside its weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.reference.quantized import QuantizedLinear
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton.formats.fp8 import is_native
from gpu_worker.kernels.triton.formats.rows import store_scaled

ROWS = 32
"""Least tokens of a product. Fewer are filled up, and more to a multiple of 16: cuBLAS needs them."""

PART = 1024
"""Outputs of a token that a program scales."""


@triton.jit
def quantize_rows(
    hidden,
    numbers,
    scales,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
):
    """A program takes a row; WIDTH: of what is stored, zeros from SIZE on."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    read = tl.load(hidden + row * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    store_scaled(read, numbers, scales, row, at, WIDTH, NATIVE_FP8)


@triton.jit
def scale_rows(
    sums,
    row_scales,
    scales,
    bias,
    out,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
    ADDED: tl.constexpr,
):
    """A program takes a part of a row, which is WIDTH long in `sums`. ADDED: to what `out` has."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = at < SIZE
    result = tl.load(sums + row * WIDTH + at, mask=inside, other=0).to(tl.float32)
    result = result * tl.load(row_scales + row) * tl.load(scales + at, mask=inside, other=0.0)
    if bias is not None:
        result += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    places = out + row * SIZE + at
    if ADDED:
        result += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, result.to(out.dtype.element_ty), mask=inside)


class TritonQuantizedLinear(QuantizedLinear):
    """See `QuantizedLinear`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, numbers: torch.dtype) -> None:
        super().__init__(weight, bias, dtype, numbers)
        self._native, self._one = is_native(weight.device), torch.ones((), device=weight.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = hidden.new_empty((len(hidden), self._out), dtype=self._dtype)
        self._compute(hidden, out, added=False)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        self._compute(hidden, residual, added=True)

    def _compute(self, hidden: Tensor, out: Tensor, added: bool) -> None:
        hidden, width = hidden.contiguous(), self._numbers.shape[1]
        padded = triton.next_power_of_2(width)
        tokens = len(hidden)
        filled = max(ROWS, -(-tokens // 16) * 16)
        numbers = torch.empty((filled, width), dtype=self._numbers.dtype, device=hidden.device)
        scales = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
        quantize_rows[(tokens,)](
            hidden,
            numbers.view(torch.uint8) if numbers.dtype == FP8 else numbers,
            scales,
            SIZE=self._in,
            WIDTH=width,
            PADDED=padded,
            NATIVE_FP8=self._native,
            num_warps=min(16, max(1, padded // 256)),
            enable_fp_fusion=False,  # rounded twice, as by the reference
        )
        sums = self._sums(numbers)
        scale_rows[(tokens, triton.cdiv(self._out, PART))](
            sums,
            scales,
            self._scales,
            self._bias,
            out,
            SIZE=self._out,
            WIDTH=sums.shape[1],
            PART=PART,
            ADDED=added,
            num_warps=8,
        )

    def _sums(self, numbers: Tensor) -> Tensor:
        """int32 or float32 [tokens, outputs, filled up]."""
        weight = self._numbers.t()
        if numbers.dtype == torch.int8:
            return torch._int_mm(numbers, weight)
        return torch._scaled_mm(numbers, weight, self._one, self._one, out_dtype=torch.float32)
