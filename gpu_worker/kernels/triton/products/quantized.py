"""Products of int8 or fp8 on GPUs: cuBLAS's, called through PyTorch, between two kernels.

    hidden [tokens, in] ──quantize_rows──▶ int8 or fp8 ──product──▶ int32 or float32 ──scale_rows──▶ out

See `reference/quantized.py`. Besides the weights, activations are read once, quantized activations are
written and read, and sums of 4 bytes are written and read. For one token that is little beside the weights.
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
"""Tokens are filled up to at least 32, and to a multiple of 16: cuBLAS multiplies no fewer."""

PART = 1024
"""Outputs of a token that a program of `scale_rows` takes."""


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
    """A program quantizes a row of SIZE numbers. WIDTH: of a stored row, which has zeros from SIZE on."""
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
    """A program scales PART outputs of a row. WIDTH: of a row of `sums`. ADDED: results are added to
    `out`."""
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

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, weight_dtype: torch.dtype
    ) -> None:
        super().__init__(weight, bias, dtype, weight_dtype)
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
            enable_fp_fusion=False,  # round twice, as the reference does
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
        """int32 or float32 [tokens, outputs], both filled up."""
        weight = self._numbers.t()
        if numbers.dtype == torch.int8:
            return torch._int_mm(numbers, weight)
        return torch._scaled_mm(numbers, weight, self._one, self._one, out_dtype=torch.float32)
