"""Numbers of fp8 as bytes: a sign, 4 bits of exponent, 3 of fraction (Micikevicius et al. 2022, E4M3).

    byte       s eeee fff              (1 + fff/8) * 2^(eeee - 7); eeee = 0: fff/8 * 2^-6; 7F: NaN
    float16    s 0eeee fff0000000      the same bits mean 2^-8 times the number

Hopper and Ada convert fp8 in one instruction. Other GPUs do not, and the conversion of Triton's interpreter
does not round to even: there a few operations on the bits give the same result.
"""

import torch
import triton
import triton.language as tl

from gpu_worker.kernels.triton import gpu


def is_native(device: torch.device) -> bool:
    """Whether the device converts fp8 itself."""
    return gpu.capability(device) >= (8, 9)


COMPILED: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)


def _ptx(name: str, moved: int, mask: int, power: int) -> str:
    """PTX that widens four bytes. Exponent and fraction move to where those of the type end, which gives the
    number times a power of two; a product with `power` takes it away."""
    halves = (("$0", "0x1404"), ("$1", "0x3424"))  # bytes 0 and 1, 2 and 3, as upper bytes
    return (
        "{ .reg .b32 zero, power, none, size, half; "
        f"mov.b32 zero, 0; mov.b32 power, {power:#x}; mov.b32 none, 0x80008000; "
        + "".join(
            f"prmt.b32 half, $2, zero, {chosen}; shr.b32 size, half, {moved}; and.b32 size, size, {mask:#x}; "
            f"lop3.b32 half, half, 0x80008000, size, 0xEA; fma.rn.{name}x2 {result}, half, power, none; "
            for result, chosen in halves
        )
        + "}"
    )


TO_BFLOAT16: tl.constexpr = tl.constexpr(_ptx("bf16", 4, 0x07F007F0, 0x7B807B80))
TO_FLOAT16: tl.constexpr = tl.constexpr(_ptx("f16", 1, 0x3F803F80, 0x5C005C00))


@triton.jit
def widen_finite(numbers, FACTOR: tl.constexpr):
    """Bytes of fp8 as FACTOR, exactly, if none is NaN; also where a GPU does not convert them itself."""
    half: tl.constexpr = tl.float16 == FACTOR
    if COMPILED and tl.float32 != FACTOR:
        bits = tl.inline_asm_elementwise(
            TO_FLOAT16 if half else TO_BFLOAT16, "=r,=r,r", [numbers], dtype=tl.int16, is_pure=True, pack=4
        )
        result = bits.to(FACTOR, bitcast=True)
    else:
        result = widen(numbers, FACTOR, False)
    return result


@triton.jit
def to_fp8(numbers, NATIVE: tl.constexpr):
    """float32 to fp8, as bytes: rounded to the nearest, ties to even, clamped to 448. NaN stays NaN."""
    bounded = tl.where(numbers > 448.0, 448.0, tl.where(numbers < -448.0, -448.0, numbers))
    if NATIVE:
        result = bounded.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        bits = bounded.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # 20 bits of the fraction are rounded away; exponents count from 7 instead of 127.
        rounded = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        # Below 2^-6 steps are of 2^-9, as those of float32 from 2^14 = 0x46800000 on.
        small = (tl.abs(bounded) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
        code = tl.where(size < 0x3C800000, small, rounded)
        code = tl.where(size > 0x7F800000, 0x7F, code)
        result = (code | ((bits >> 24) & 0x80)).to(tl.uint8)
    return result


@triton.jit
def widen(numbers, FACTOR: tl.constexpr, NATIVE: tl.constexpr):
    """Numbers as FACTOR; uint8 is fp8. Exact, except for types wider than FACTOR."""
    if numbers.dtype != tl.uint8:
        result = numbers.to(FACTOR)
    elif NATIVE:
        result = numbers.to(tl.float8e4nv, bitcast=True).to(FACTOR)
    else:
        bits = numbers.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        result = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(FACTOR) * 256.0).to(FACTOR)
    return result
