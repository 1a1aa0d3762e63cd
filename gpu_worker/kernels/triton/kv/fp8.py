"""Pages of fp8 in Triton: see `reference/kv/fp8.py`. The kernels see them as bytes without sign.

What a device does not convert itself is converted by operations on the bits: `formats/fp8.py`.
"""

import torch
import triton
import triton.language as tl

from gpu_worker.kernels.reference.kv.fp8 import Fp8
from gpu_worker.kernels.triton.formats.fp8 import is_native, to_fp8, widen
from gpu_worker.kernels.triton.kv.format import Reading, TritonFormat


@triton.jit
def store_native(numbers, pages, scales, row, head, dims, SIZE: tl.constexpr):
    store_fp8(numbers, pages, scales, row, head, dims, SIZE, True)


@triton.jit
def store_in_bits(numbers, pages, scales, row, head, dims, SIZE: tl.constexpr):
    store_fp8(numbers, pages, scales, row, head, dims, SIZE, False)


@triton.jit
def store_fp8(numbers, pages, scales, row, head, dims, SIZE: tl.constexpr, NATIVE: tl.constexpr):
    inverse = tl.div_rn(1.0, tl.load(scales + head))
    tl.store(pages + row * SIZE + dims, to_fp8(numbers * inverse, NATIVE), mask=dims < SIZE)


@triton.jit
def widen_native(numbers, FACTOR: tl.constexpr):
    return (widen(numbers, FACTOR, True),)


@triton.jit
def widen_in_bits(numbers, FACTOR: tl.constexpr):
    return (widen(numbers, FACTOR, False),)


@triton.jit
def halves(words, FACTOR: tl.constexpr):
    """Even and odd numbers of int16 words, float16."""
    return tl.inline_asm_elementwise(
        """{
            .reg .b16 one, other;
            .reg .b32 left, right;
            mov.b32 {one, other}, $2;
            cvt.rn.f16x2.e4m3x2 left, one;
            cvt.rn.f16x2.e4m3x2 right, other;
            prmt.b32 $0, left, right, 0x5410;
            prmt.b32 $1, left, right, 0x7632;
        }""",
        "=r,=r,r",
        [words],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def halves_in_bits(words, FACTOR: tl.constexpr):
    """As `halves`, without machine instructions."""
    even = widen((words & 0xFF).to(tl.uint8), tl.float16, False)
    odd = widen(((words >> 8) & 0xFF).to(tl.uint8), tl.float16, False)
    return even, odd


class TritonFp8(TritonFormat, Fp8):
    """See `KvFormat` and `kv/format.py`."""

    head_scales = True
    stored = torch.uint8

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of the activations."""
        super().__init__(dtype)
        native = is_native(device)
        assembled = native and not triton.knobs.runtime.interpret
        self.store_row = store_native if native else store_in_bits
        self._single = Reading(widen_native if native else widen_in_bits, torch.uint8)
        self._packed = Reading(halves if assembled else halves_in_bits, torch.int16, each=2)

    def reading(self, factor: tl.dtype) -> Reading:
        return self._single if factor == tl.float32 else self._packed
