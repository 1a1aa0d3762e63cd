"""Kernels for weights of 4 bits: a tile of a product, the sum of splits, and dequantization.

A strip is 128 weights of one output: four groups with a scale each (`reference/int4.py`), in 72 bytes:

    32 words of 16 bits    word j:    │ 96 + j │ 64 + j │ 32 + j │ j │   four weights + 8, 4 bits each
    scales                 float16:   │ group 3 │ 2 │ 1 │ 0 │            as one int64

The same 4 bits of all words are a group, in order. A shift and a mask unpack them, two weights at a time. The
unpacked bits are set as the end of a fraction whose exponent means 128, which gives 128 + 8 + weight exactly:

    bfloat16      0 10000110 000wwww      minus 136 it is the weight      (float16: 1024, minus 1032)

Numbers of fp4 have a sign, two bits of exponent and one of fraction. They are moved to where their type has
these, which gives the number times a power of two, which a product takes away:

    bfloat16      w 00000000 0000000  ->  w 000000ww w000000  times 2^126       (float16: w 000ww w..., 2^14)

Weights are multiplied as these numbers. The sums of each group are multiplied by its scale in float32, so
that no weight is rounded again. Weights are the left operand, which matrix units read from registers; so the
sums of a tile are [outputs, tokens].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.kernels.products import FP4, scales_of
from gpu_worker.kernels.products import GROUP as GROUP_SIZE
from gpu_worker.kernels.reference.int4 import quantize_groups
from gpu_worker.kernels.triton.products.splits import leave_split

STRIP: tl.constexpr = tl.constexpr(128)
"""Weights of an output in a strip."""
GROUP: tl.constexpr = tl.constexpr(32)
"""Weights of a group."""
GROUPS: tl.constexpr = tl.constexpr(4)
"""Groups of a strip."""

COMPILED: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)
PAIRS: tl.constexpr = tl.constexpr(
    tuple(
        f"{{ .reg .b32 t; shr.b32 t, $1, {4 * group}; lop3.b32 $0, t, 0x000F000F, $2, 0xEA; }}"
        for group in range(4)
    )
)
"""PTX for two words at once: `word >> 4 * group & 15 | exponent`. A compiler makes twice as many instructions
of that expression, and a product of few tokens is bound by instructions."""


def _shifted(bits: int, word: str) -> str:
    """PTX for `word << bits`."""
    return f"shl.b32 {word}, $1, {bits}; " if bits >= 0 else f"shr.b32 {word}, $1, {-bits}; "


def _ptx_of_fp4(name: str, place: int, mask: int, power: int) -> tuple[str, ...]:
    """PTX of each group for two words at once: bits 0 to 2 of a number go to `place`, bit 3 to the sign."""
    return tuple(
        "{ .reg .b32 size, sign, power, none; "
        + _shifted(place - 4 * group, "size")
        + _shifted(12 - 4 * group, "sign")
        + f"and.b32 size, size, {mask:#x}; lop3.b32 size, sign, 0x80008000, size, 0xEA; "
        + f"mov.b32 power, {power:#x}; mov.b32 none, 0x80008000; fma.rn.{name}x2 $0, size, power, none; }}"
        for group in range(4)
    )


BFLOAT16_OF_FP4: tl.constexpr = tl.constexpr(_ptx_of_fp4("bf16", 6, 0x01C001C0, 0x7E807E80))
FLOAT16_OF_FP4: tl.constexpr = tl.constexpr(_ptx_of_fp4("f16", 9, 0x0E000E00, 0x74007400))


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as words int16 [strips, out, 32] and scales int64 [strips, out]."""
    strip, group, groups = int(STRIP), int(GROUP), int(GROUPS)
    if (scales := scales_of(weight, "fp4")) is not None:
        numbers, zero = _numbers_of_fp4(weight, scales), 0
    else:
        numbers, scales = quantize_groups(weight)
        numbers, zero = numbers + 8, 8
    filled = pad(numbers, (0, -numbers.shape[1] % strip), value=zero)
    fours = filled.view(len(weight), -1, groups, group).transpose(0, 1).to(torch.int32)
    places = torch.arange(groups, dtype=torch.int32, device=weight.device) * 4
    words = (fours << places[:, None]).sum(2, dtype=torch.int32)
    strip_scales = pad(scales, (0, -scales.shape[1] % groups)).view(torch.int64)
    return words.to(torch.int16), strip_scales.t().contiguous()


def _numbers_of_fp4(weight: Tensor, scales: Tensor) -> Tensor:
    """Multiples of `scales`, as their places in `FP4`: int8 [out, in]."""
    spread = scales.float().repeat_interleave(GROUP_SIZE, 1)[:, : weight.shape[1]]
    numbers = torch.where(spread == 0, 0.0, weight.float() / spread)
    between = (FP4[:7] + FP4[1:8]).to(weight.device) / 2
    return (torch.bucketize(numbers.abs(), between) + 8 * numbers.signbit()).to(torch.int8)


@triton.jit
def unpacked(words, group: tl.constexpr, FP4: tl.constexpr, FACTOR: tl.constexpr):
    """Weights of a group as FACTOR, exactly, from words [..., GROUP]. FP4: they are of fp4, not int4."""
    half: tl.constexpr = tl.float16 == FACTOR
    if FP4 and COMPILED and tl.float32 != FACTOR:
        ptx: tl.constexpr = FLOAT16_OF_FP4[group] if half else BFLOAT16_OF_FP4[group]
        bits = tl.inline_asm_elementwise(ptx, "=r,r", [words], dtype=tl.int16, is_pure=True, pack=2)
        weights = bits.to(FACTOR, bitcast=True)
    elif FP4:
        word = words.to(tl.int32) >> (4 * group)
        bits = ((word & 7) << 22) | ((word & 8) << 28)
        weights = (bits.to(tl.float32, bitcast=True) * 8.507059173023462e37).to(FACTOR)  # 2^126
    elif COMPILED and tl.float32 != FACTOR:
        exponent = tl.full(words.shape, 0x6400 if half else 0x4300, tl.int16)
        bits = tl.inline_asm_elementwise(
            PAIRS[group], "=r,r,r", [words, exponent], dtype=tl.int16, is_pure=True, pack=2
        )
        weights = bits.to(FACTOR, bitcast=True) - (1032.0 if half else 136.0)
    else:
        # With the exponent of 2^23 the bits are 2^23 + 8 + weight. If 8 were taken from whole numbers, ptxas
        # 12.8 would add two at a time in 16 bits, and may forget one: seen on an H100.
        bits = ((words.to(tl.int32) >> (4 * group)) & 15) | 0x4B000000
        weights = (bits.to(tl.float32, bitcast=True) - 8388616.0).to(FACTOR)
    return weights


@triton.jit
def scale_of(scales, group: tl.constexpr):
    """Scale of a group as float32, from scales of strips."""
    return (scales >> (16 * group)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["tokens", "split_strips"])
def multiply_int4(
    hidden,
    packed,
    scales,
    bias,
    out,
    tokens,
    split_strips,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    STRIPS: tl.constexpr,
    OUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    TOGETHER: tl.constexpr,
    STAGES: tl.constexpr,
    ADDED: tl.constexpr,
    FP4: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """A program takes TOKENS tokens, OUTS outputs and `split_strips` strips; `out` has a result for each
    split.

    packed [STRIPS, OUT, GROUP], scales [STRIPS, OUT]. TOGETHER: strips multiplied at a time, each by a warp
    of its own; the warps' sums are added up at the end. ADDED: results are added to `out`. FACTOR: type of
    the operands.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    number = tl.arange(0, GROUP)
    wanted, inside = token < tokens, output < OUT
    # Strips of one turn are loaded as the lines of one matrix. Triton's layout of three dimensions in shared
    # memory would put eight lines that are needed at once into the same bank.
    line, column = tl.arange(0, TOGETHER * OUTS), tl.arange(0, TOGETHER * TOKENS)
    line_output = tl.program_id(1) * OUTS + line % OUTS
    column_token = tl.program_id(0) * TOKENS + column % TOKENS
    row = hidden + column_token.to(tl.int64)[:, None] * IN
    if TOGETHER == 1:
        part = 0
        sums = tl.zeros((OUTS, TOKENS), tl.float32)
    else:
        part = tl.arange(0, TOGETHER)[:, None]
        sums = tl.zeros((TOGETHER, OUTS, TOKENS), tl.float32)
    split = tl.program_id(2)
    for first in tl.range(split * split_strips, (split + 1) * split_strips, TOGETHER, num_stages=STAGES):
        strip = first + line // OUTS
        places = (strip * OUT + line_output).to(tl.int64)[:, None] * GROUP + number
        there = (line_output < OUT) & (strip < STRIPS)
        words = tl.load(packed + places, mask=there[:, None], other=0)
        strip = first + part
        strip_scales = tl.load(scales + strip * OUT + output, mask=inside & (strip < STRIPS), other=0)
        for group in tl.static_range(GROUPS):
            place = ((first + column // TOKENS) * STRIP + group * GROUP)[:, None] + number
            held = (column_token < tokens)[:, None] & (place < IN)
            numbers = tl.load(row + place, mask=held, other=0.0)
            left, right = unpacked(words, group, FP4, FACTOR), numbers.to(FACTOR)
            if TOGETHER == 1:
                product = tl.dot(left, tl.trans(right), input_precision="ieee")
            else:
                left = tl.reshape(left, (TOGETHER, OUTS, GROUP))
                right = tl.permute(tl.reshape(right, (TOGETHER, TOKENS, GROUP)), (0, 2, 1))
                product = tl.dot(left, right, input_precision="ieee")
            sums += product * tl.expand_dims(scale_of(strip_scales, group), -1)
    if TOGETHER > 1:
        sums = tl.sum(sums, axis=0)
    leave_split(sums, bias, out, split, tokens, token, wanted, output, inside, OUT, ADDED)


@triton.jit
def dequantize_strips(
    packed,
    scales,
    matrices,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    STRIPS: tl.constexpr,
    OUTS: tl.constexpr,
    FP4: tl.constexpr,
):
    """A program dequantizes a strip of OUTS outputs, rounded to the type of `matrices`, [any, OUT, IN]."""
    strip, matrix = tl.program_id(0), tl.program_id(2).to(tl.int64)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    number = tl.arange(0, GROUP)
    inside = output < OUT
    at = (matrix * STRIPS + strip) * OUT + output
    words = tl.load(packed + at[:, None] * GROUP + number, mask=inside[:, None], other=0)
    strip_scales = tl.load(scales + at, mask=inside, other=0)
    for group in tl.static_range(GROUPS):
        place = strip * STRIP + group * GROUP + number
        weights = unpacked(words, group, FP4, tl.float32) * scale_of(strip_scales, group)[:, None]
        stored = inside[:, None] & (place < IN)
        places = matrices + (matrix * OUT + output)[:, None] * IN + place
        tl.store(places, weights.to(matrices.dtype.element_ty), mask=stored)


DEQUANTIZED_OUTS = 64
"""Outputs that a program of `dequantize_strips` takes."""


def dequantized(packed: Tensor, scales: Tensor, matrices: Tensor, fp4: bool) -> Tensor:
    """`matrices` [any, out, in], filled with the weights of packed [any, strips, out, 32]."""
    count, out, size = matrices.shape
    strips = packed.shape[1]
    dequantize_strips[(strips, triton.cdiv(out, DEQUANTIZED_OUTS), count)](
        packed,
        scales,
        matrices,
        IN=size,
        OUT=out,
        STRIPS=strips,
        OUTS=DEQUANTIZED_OUTS,
        FP4=fp4,
        num_warps=4,
    )
    return matrices
