"""Products with weights of fp8 whose scales are of groups of inputs, as in checkpoints of DeepSeek and Qwen.
Activations are not quantized.

    up to 256 tokens    `multiply_groups` widens weights in registers: bound by reading the weights
    more                `dequantize_groups` dequantizes the matrix, for cuBLAS: bound by arithmetic

Weights are bytes [out, in]. Scales, float32, lie group by group, [groups, out]. Weights are multiplied as
they are, in the activations' type. The sums of each group are multiplied by its scales, in float32. As in
`int4_tile.py` weights are the left operand, and the sums of a tile are [outputs, tokens].
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.formats.fp8 import is_native, widen, widen_finite
from gpu_worker.kernels.triton.products.linear import TritonLinear
from gpu_worker.kernels.triton.products.splits import leave_split, multiply

MOST_TOKENS = 256
"""Tokens up to which `multiply_groups` computes a product."""
MOST_SIZE = 128
"""Inputs of a group. Larger groups have the same scale several times."""
OUTS = 64
"""Outputs of a program."""
LEAST_SPLIT = 4
"""Groups of the shortest split."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A weight."""

    weights: Tensor
    """Bytes of fp8, uint8 [out, in]."""
    scales: Tensor
    """float32 [groups, out]."""
    size: int
    """Inputs of a group. The last group may have fewer."""


def groups_of(weight: Tensor) -> Groups:
    """The groups of a `CodedWeight` of fp8 without shifts, in groups of multiples of 32 inputs, or in one."""
    assert isinstance(weight, CodedWeight)
    codes = weight.codes
    scales, width = codes.whole_scales(), codes.numbers.shape[1]
    size = math.gcd(codes.size, MOST_SIZE) if scales.shape[1] > 1 else MOST_SIZE
    count = -(-width // size)
    each = count if scales.shape[1] == 1 else codes.size // size
    scales = scales.repeat_interleave(each, 1)[:, :count]
    return Groups(codes.numbers.contiguous(), scales.t().contiguous(), size)


@triton.jit(do_not_specialize=["tokens", "split_groups"])
def multiply_groups(
    hidden,
    weights,
    scales,
    bias,
    out,
    tokens,
    split_groups,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SIZE: tl.constexpr,
    OUTS: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
    ADDED: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """A program takes TOKENS tokens, OUTS outputs and `split_groups` groups of SIZE inputs; `out` has a
    result for each split. ADDED: results are added to `out`. FACTOR: type of the operands."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    number = tl.arange(0, SIZE)
    wanted, inside = token < tokens, output < OUT
    rows = hidden + token.to(tl.int64)[None, :] * IN
    own = weights + output.to(tl.int64)[:, None] * IN
    sums = tl.zeros((OUTS, TOKENS), tl.float32)
    split = tl.program_id(2)
    for group in tl.range(split * split_groups, (split + 1) * split_groups, num_stages=STAGES):
        at = group * SIZE + number
        there = at < IN
        w = tl.load(own + at[None, :], mask=inside[:, None] & there[None, :], other=0)
        x = tl.load(rows + at[:, None], mask=there[:, None] & wanted[None, :], other=0.0).to(FACTOR)
        factors = tl.load(scales + group * OUT + output, mask=inside & (group * SIZE < IN), other=0.0)
        sums += tl.dot(widen_finite(w, FACTOR), x, input_precision="ieee") * factors[:, None]
    leave_split(sums, bias, out, split, tokens, token, wanted, output, inside, OUT, ADDED)


@triton.jit
def dequantize_groups(
    weights,
    scales,
    matrices,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    OUTS: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
):
    """A program dequantizes a group of OUTS outputs, rounded to the type of `matrices`, [any, OUT, IN]."""
    group, matrix = tl.program_id(0), tl.program_id(2).to(tl.int64)
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    at = group * SIZE + tl.arange(0, SIZE)
    inside = output < OUT
    held = inside[:, None] & (at < IN)[None, :]
    places = (matrix * OUT + output)[:, None] * IN + at[None, :]
    own = widen(tl.load(weights + places, mask=held, other=0), tl.float32, NATIVE_FP8)
    factors = tl.load(scales + (matrix * GROUPS + group) * OUT + output, mask=inside, other=0.0)
    tl.store(matrices + places, (own * factors[:, None]).to(matrices.dtype.element_ty), mask=held)


def dequantized(weights: Tensor, scales: Tensor, size: int, matrices: Tensor) -> Tensor:
    """`matrices` [any, out, in], filled with the weights of bytes [any, out, in] and scales [any, groups,
    out]."""
    count, out, width = matrices.shape
    groups = scales.shape[1]
    dequantize_groups[(groups, triton.cdiv(out, OUTS), count)](
        weights,
        scales,
        matrices,
        IN=width,
        OUT=out,
        GROUPS=groups,
        SIZE=size,
        OUTS=OUTS,
        NATIVE_FP8=is_native(matrices.device),
        num_warps=4,
    )
    return matrices


class TritonGroupsLinear:
    """See `Linear`. `rows` are dequantized rows of the weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, processors: int) -> None:
        """`dtype`: of the results."""
        self._own, self._bias = groups_of(weight), bias
        self._rows_dtype, self._dtype, self._processors = weight.dtype, dtype, processors

    def __call__(self, hidden: Tensor) -> Tensor:
        if len(hidden) > MOST_TOKENS:
            return self._plain()(hidden)
        out = hidden.new_empty((len(hidden), len(self._own.weights)), dtype=self._dtype)
        self._multiply(hidden, out, added=False)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        if len(hidden) > MOST_TOKENS:
            self._plain().add_to(hidden, residual)
        else:
            self._multiply(hidden, residual, added=True)

    def rows(self, numbers: Tensor) -> Tensor:
        own = self._own
        weights = own.weights[numbers].view(torch.float8_e4m3fn).float()
        scales = own.scales.t()[numbers].repeat_interleave(own.size, 1)[:, : weights.shape[1]]
        return (weights * scales).to(self._rows_dtype)

    def _multiply(self, hidden: Tensor, out: Tensor, added: bool) -> None:
        tokens, outs = len(hidden), len(self._own.weights)
        rows = min(64, max(16, triton.next_power_of_2(tokens)))
        tiles = triton.cdiv(tokens, rows), triton.cdiv(outs, OUTS)
        groups = len(self._own.scales)
        splits = max(1, min(2 * self._processors // (tiles[0] * tiles[1]), groups // LEAST_SPLIT))
        split_groups = triton.cdiv(groups, splits)
        launch = partial(self._launch, hidden, rows, (*tiles, splits), split_groups)
        multiply(launch, splits, self._bias, out, added)

    def _launch(
        self,
        hidden: Tensor,
        rows: int,
        programs: tuple[int, int, int],
        split_groups: int,
        out: Tensor,
        bias: Tensor | None,
        added: bool,
    ) -> None:
        own = self._own
        outs, size = own.weights.shape
        # Weights, scales and tokens of a group; widened weights of float32 are beside them.
        each = OUTS * (own.size + 4) + own.size * rows * hidden.itemsize
        beside = 4 * OUTS * own.size if hidden.dtype == torch.float32 else 0
        multiply_groups[programs](
            hidden.contiguous(),
            own.weights,
            own.scales,
            bias,
            out,
            len(hidden),
            split_groups,
            IN=size,
            OUT=outs,
            SIZE=own.size,
            OUTS=OUTS,
            TOKENS=rows,
            STAGES=gpu.stages(4, each, beside, gpu.shared_memory(hidden.device)),
            ADDED=added,
            FACTOR=factor(hidden),
            num_warps=4,
        )

    def _plain(self) -> TritonLinear:
        """A product with the dequantized matrix, which is freed with it."""
        own = self._own
        matrices = own.weights.new_empty((1, *own.weights.shape), dtype=self._rows_dtype)
        dequantized(own.weights[None], own.scales[None], own.size, matrices)
        return TritonLinear(matrices[0], self._bias, self._dtype)
