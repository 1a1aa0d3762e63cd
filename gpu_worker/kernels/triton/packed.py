"""Pages of one byte a number, read two numbers at a time: as words, even dimensions low, odd ones high.

    words of a row    │ d1 d0 │ d3 d2 │ d5 d4 │ ...        16 bits each, which matrix units load by themselves
    as float16        │ d0 │ d2 │ d4 │ ...   and   │ d1 │ d3 │ d5 │ ...

A product over all dimensions is one over the even and one over the odd ones. Every number of int8 and of fp8
is one of float16, so nothing is rounded here. Two words become four numbers in four or five operations; bytes
by themselves would take as many each.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.fp8 import widen


@triton.jit
def halves(words, INT8: tl.constexpr, NATIVE_FP8: tl.constexpr, ASSEMBLED: tl.constexpr):
    """Even and odd numbers of int16 words, float16. Not ASSEMBLED: the same without machine instructions."""
    if not ASSEMBLED or not (INT8 or NATIVE_FP8):
        if INT8:
            even = ((words << 8) >> 8).to(tl.float16)
            odd = (words >> 8).to(tl.float16)
        else:
            even = widen((words & 0xFF).to(tl.uint8), tl.float16, False)
            odd = widen(((words >> 8) & 0xFF).to(tl.uint8), tl.float16, False)
    elif INT8:
        # A byte whose sign is turned round is 128 more; behind 0x64 it is the end of 1024 + 128 + number.
        even, odd = tl.inline_asm_elementwise(
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
    else:
        even, odd = tl.inline_asm_elementwise(
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
    return even, odd


@triton.jit
def in_units(even, odd):
    """Rows of even and odd numbers as float16, in units of each row's largest; and that, float32 [rows]."""
    even, odd = even.to(tl.float32), odd.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(even), axis=1), tl.max(tl.abs(odd), axis=1))
    largest = tl.where(largest > 0, largest, 1.0)
    return (even / largest[:, None]).to(tl.float16), (odd / largest[:, None]).to(tl.float16), largest
