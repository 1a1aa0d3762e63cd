"""Pages of one byte a number, read two numbers at a time: as words, even dimensions low, odd ones high.

    words of a row    │ d1 d0 │ d3 d2 │ d5 d4 │ ...        16 bits each, which matrix units load by themselves
    as float16        │ d0 │ d2 │ d4 │ ...   and   │ d1 │ d3 │ d5 │ ...

A product over all dimensions is one over the even and one over the odd ones. Every number of int8 and of fp8
is one of float16, so nothing is rounded here. Two words become four numbers in four or five operations; bytes
by themselves would take as many each.

So the kernels have what they multiply in parts, a tuple of matrices: the two of words, or one that is all.
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.formats.fp8 import widen


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
def parts(
    numbers, INT8: tl.constexpr, NATIVE_FP8: tl.constexpr, ASSEMBLED: tl.constexpr, FACTOR: tl.constexpr
):
    """A matrix of a page's numbers as it is multiplied: words as float16, others as FACTOR."""
    if numbers.dtype == tl.int16:
        result = halves(numbers, INT8, NATIVE_FP8, ASSEMBLED)
    else:
        result = (widen(numbers, FACTOR, NATIVE_FP8),)
    return result


@triton.jit
def sizes(rows):
    """The largest of each row's numbers [M, D] without their signs, float32 [M]; more than 0."""
    return tl.maximum(tl.max(tl.abs(rows.to(tl.float32)), axis=1), 1e-30)


@triton.jit
def apart(rows, size):
    """Even and odd numbers of rows [M, D], float16, in units of `size` [M]."""
    whole = (rows.to(tl.float32) * (1.0 / size)[:, None]).to(tl.float16)
    return tl.split(tl.reshape(whole, [rows.shape[0], rows.shape[1] // 2, 2]))


@triton.jit
def together(numbers):
    """Rows [M, D] that come in parts."""
    result = numbers[0]
    if len(numbers) == 2:
        result = tl.reshape(tl.join(numbers[0], numbers[1]), [result.shape[0], 2 * result.shape[1]])
    return result
