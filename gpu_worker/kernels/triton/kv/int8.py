"""Pages of int8 in Triton: see `reference/kv/int8.py`."""

import torch
import triton
import triton.language as tl

from gpu_worker.kernels.reference.kv.int8 import Int8
from gpu_worker.kernels.triton.formats.rows import store_scaled
from gpu_worker.kernels.triton.kv.format import Reading, TritonFormat
from gpu_worker.kernels.triton.kv.plain import widen_plain


@triton.jit
def store_int8(numbers, pages, scales, row, head, dims, SIZE: tl.constexpr):
    store_scaled(numbers, pages, scales, row, dims, SIZE, False)


@triton.jit
def halves(words, FACTOR: tl.constexpr):
    """Even and odd numbers of int16 words, float16."""
    # A byte whose sign is turned round is 128 more; behind 0x64 it is the end of 1024 + 128 + number.
    return tl.inline_asm_elementwise(
        """{
            .reg .b32 turned, low, high, less;
            mov.b32 less, 0xE480E480;
            xor.b32 turned, $2, 0x80808080;
            prmt.b32 low, turned, 0x64646464, 0x4240;
            prmt.b32 high, turned, 0x64646464, 0x4341;
            add.rn.f16x2 $0, low, less;
            add.rn.f16x2 $1, high, less;
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
    return ((words << 8) >> 8).to(tl.float16), (words >> 8).to(tl.float16)


class TritonInt8(TritonFormat, Int8):
    """See `KvFormat` and `kv/format.py`."""

    row_scales = True
    store_row = store_int8

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of the activations."""
        super().__init__(dtype)
        self._single = Reading(widen_plain)
        assembled = not triton.knobs.runtime.interpret
        self._packed = Reading(halves if assembled else halves_in_bits, torch.int16, each=2)

    def reading(self, factor: tl.dtype) -> Reading:
        return self._single if factor == tl.float32 else self._packed
