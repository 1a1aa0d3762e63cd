"""The kernels of weights of 4 bits: a tile of a product, sums of its parts, and a matrix widened.

A strip is 128 weights of one output, four groups with a scale each (`reference/int4.py`), in 72 bytes:

    32 half-words    number j:  │ 96 + j │ 64 + j │ 32 + j │ j │      four weights, 8 added to each, in 4 bits
    scales           float16:   │ group 3 │ 2 │ 1 │ 0 │               as one int64

So the numbers at the same bits are a group, in its order: a shift and a mask bring it down, two weights at a
time. What is there then is the end of a fraction. Under the bits of 128 it is 128 + 8 + weight, exactly:

    bfloat16      0 10000110 000wwww      less 136 it is the weight      (float16: 1024, less 1032)

Weights are multiplied as the whole numbers that they are, and each group's sums by its scale, in float32: no
weight is rounded again. They are the left factor, which is taken out of registers; so a tile's sums are
[outputs, tokens].
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.kernels.reference.int4 import grouped

STRIP: tl.constexpr = tl.constexpr(128)
"""Weights of an output that lie together."""
GROUP: tl.constexpr = tl.constexpr(32)
GROUPS: tl.constexpr = tl.constexpr(4)

COMPILED: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)
PAIRS: tl.constexpr = tl.constexpr(
    tuple(
        f"{{ .reg .b32 t; shr.b32 t, $1, {4 * group}; lop3.b32 $0, t, 0x000F000F, $2, 0xEA; }}"
        for group in range(4)
    )
)
"""Two half-words at once, in PTX: `half-word >> 4 * group & 15 | exponent`. Of that line a compiler makes
twice as many instructions, and at few tokens it is instructions that a product waits for."""


def packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [out, in] as half-words int16 [strips, out, 32] and scales int64 [strips, out]."""
    strip, group, groups = int(STRIP), int(GROUP), int(GROUPS)
    numbers, scales = grouped(weight)
    filled = pad(numbers + 8, (0, -numbers.shape[1] % strip), value=8)
    fours = filled.view(len(weight), -1, groups, group).transpose(0, 1).to(torch.int32)
    places = torch.arange(groups, dtype=torch.int32, device=weight.device) * 4
    halves = (fours << places[:, None]).sum(2, dtype=torch.int32)
    strip_scales = pad(scales, (0, -scales.shape[1] % groups)).view(torch.int64)
    return halves.to(torch.int16), strip_scales.t().contiguous()


@triton.jit
def widened(halves, group: tl.constexpr, FACTOR: tl.constexpr):
    """Weights of a group as FACTOR, exactly, of half-words [..., GROUP]."""
    half: tl.constexpr = tl.float16 == FACTOR
    if COMPILED and tl.float32 != FACTOR:
        exponent = tl.full(halves.shape, 0x6400 if half else 0x4300, tl.int16)
        bits = tl.inline_asm_elementwise(
            PAIRS[group], "=r,r,r", [halves, exponent], dtype=tl.int16, is_pure=True, pack=2
        )
        weights = bits.to(FACTOR, bitcast=True) - (1032.0 if half else 136.0)
    else:
        weights = (((halves >> (4 * group)) & 15).to(tl.float32) - 8.0).to(FACTOR)
    return weights


@triton.jit
def scale_of(scales, group: tl.constexpr):
    """float32, of a group."""
    return (scales >> (16 * group)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["tokens", "span_strips"])
def multiply_int4(
    hidden,
    packed,
    scales,
    bias,
    out,
    tokens,
    span_strips,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    STRIPS: tl.constexpr,
    OUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    TOGETHER: tl.constexpr,
    STAGES: tl.constexpr,
    ADDED: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """A program takes TOKENS tokens, OUTS outputs and `span_strips` strips; `out` has a result for each span.

    packed [STRIPS, OUT, GROUP], scales [STRIPS, OUT]. TOGETHER: strips at once, a warp each, which has sums
    of its own; they are added up at the end. ADDED: to what `out` has. FACTOR: type of numbers multiplied.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    number = tl.arange(0, GROUP)
    wanted, inside = token < tokens, output < OUT
    # What is taken together is loaded as the lines of one matrix: of three dimensions Triton would lay it so
    # in shared memory that eight lines which are needed at once begin in the same bank.
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
    span = tl.program_id(2)
    for first in tl.range(span * span_strips, (span + 1) * span_strips, TOGETHER, num_stages=STAGES):
        strip = first + line // OUTS
        places = (strip * OUT + line_output).to(tl.int64)[:, None] * GROUP + number
        there = (line_output < OUT) & (strip < STRIPS)
        halves = tl.load(packed + places, mask=there[:, None], other=0)
        strip = first + part
        strip_scales = tl.load(scales + strip * OUT + output, mask=inside & (strip < STRIPS), other=0)
        for group in tl.static_range(GROUPS):
            place = ((first + column // TOKENS) * STRIP + group * GROUP)[:, None] + number
            held = (column_token < tokens)[:, None] & (place < IN)
            numbers = tl.load(row + place, mask=held, other=0.0)
            left, right = widened(halves, group, FACTOR), numbers.to(FACTOR)
            if TOGETHER == 1:
                product = tl.dot(left, tl.trans(right), input_precision="ieee")
            else:
                left = tl.reshape(left, (TOGETHER, OUTS, GROUP))
                right = tl.permute(tl.reshape(right, (TOGETHER, TOKENS, GROUP)), (0, 2, 1))
                product = tl.dot(left, right, input_precision="ieee")
            sums += product * tl.expand_dims(scale_of(strip_scales, group), -1)
    if TOGETHER > 1:
        sums = tl.sum(sums, axis=0)
    if bias is not None:
        sums += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[:, None]
    results = out + (span * tokens + token).to(tl.int64) * OUT + output[:, None]
    stored = inside[:, None] & wanted
    if ADDED:
        sums += tl.load(results, mask=stored, other=0.0).to(tl.float32)
    tl.store(results, sums.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["tokens"])
def add_spans(
    sums,
    bias,
    out,
    tokens,
    SPANS: tl.constexpr,
    OUT: tl.constexpr,
    PART: tl.constexpr,
    ADDED: tl.constexpr,
):
    """A program takes PART outputs of a token, of sums [SPANS, tokens, OUT]. ADDED: to what `out` has."""
    token = tl.program_id(0)
    output = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = output < OUT
    result = tl.zeros((PART,), tl.float32)
    for span in tl.static_range(SPANS):
        result += tl.load(sums + (span * tokens + token).to(tl.int64) * OUT + output, mask=inside, other=0.0)
    if bias is not None:
        result += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    places = out + token.to(tl.int64) * OUT + output
    if ADDED:
        result += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def widen_strips(packed, scales, matrix, IN: tl.constexpr, OUT: tl.constexpr, OUTS: tl.constexpr):
    """A program widens a strip of OUTS outputs, rounded to the type of `matrix`, [OUT, IN]."""
    strip = tl.program_id(0)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    number = tl.arange(0, GROUP)
    inside = output < OUT
    at = strip * OUT + output
    halves = tl.load(packed + at[:, None].to(tl.int64) * GROUP + number, mask=inside[:, None], other=0)
    strip_scales = tl.load(scales + at, mask=inside, other=0)
    for group in tl.static_range(GROUPS):
        place = strip * STRIP + group * GROUP + number
        weights = widened(halves, group, tl.float32) * scale_of(strip_scales, group)[:, None]
        stored = inside[:, None] & (place < IN)
        places = matrix + output[:, None].to(tl.int64) * IN + place
        tl.store(places, weights.to(matrix.dtype.element_ty), mask=stored)
