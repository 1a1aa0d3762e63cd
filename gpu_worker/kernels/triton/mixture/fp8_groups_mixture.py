"""A mixture of experts with weights of fp8 whose scales are of groups of inputs: see `fp8_groups.py`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.products import Clamped
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.formats.fp8 import widen_finite
from gpu_worker.kernels.triton.mixture.dequantized import UNPACKED_PAIRS, DequantizedWeights, leave_outputs
from gpu_worker.kernels.triton.mixture.mixture import (
    ExpertWeights,
    TritonMixture,
    constants,
    own_pairs,
)
from gpu_worker.kernels.triton.mixture.pairs import RoutedPairs
from gpu_worker.kernels.triton.products.fp8_groups import dequantized, groups_of


@triton.jit
def multiply_tiles_groups(
    rows,
    order,
    tiles,
    weights,
    scales,
    biases,
    routing_weights,
    out,
    alpha,
    limit,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    EXPERTS_PER_TOKEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """As `multiply_tiles`; sums are [outputs, pairs], for weights are the left factor.

    weights [experts, outputs, SIZE] and scales [experts, groups, outputs]; with an ACTIVATION gates first,
    then ups; if it is relu2, ups alone. GROUP: inputs of a group.
    """
    FIRST: tl.constexpr = ACTIVATION != ""
    GATED: tl.constexpr = (ACTIVATION != "") & (ACTIVATION != "relu2")
    WIDTH: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    GROUPS: tl.constexpr = (SIZE + GROUP - 1) // GROUP
    tile = tiles + 3 * tl.program_id(1)
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        pairs, real, rows_read, targets = own_pairs(tile, order, EXPERTS_PER_TOKEN, FIRST, M)
        outs = tl.program_id(0) * N + tl.arange(0, N)
        wanted = outs < OUTPUTS
        number = tl.arange(0, GROUP)
        sources = rows + rows_read[None, :] * SIZE
        own = weights + (expert * WIDTH + outs)[:, None] * SIZE
        sums = tl.zeros((N, M), tl.float32)
        ups = tl.zeros((N, M), tl.float32)
        for group in tl.range(0, GROUPS, num_stages=STAGES):
            at = group * GROUP + number
            there = at < SIZE
            held = wanted[:, None] & there[None, :]
            x = tl.load(sources + at[:, None], mask=there[:, None] & real[None, :], other=0.0).to(FACTOR)
            own_scales = scales + (expert * GROUPS + group) * WIDTH + outs
            w = tl.load(own + at[None, :], mask=held, other=0)
            factors = tl.load(own_scales, mask=wanted, other=0.0)
            sums += tl.dot(widen_finite(w, FACTOR), x, input_precision="ieee") * factors[:, None]
            if GATED:
                w = tl.load(own + OUTPUTS * SIZE + at[None, :], mask=held, other=0)
                factors = tl.load(own_scales + OUTPUTS, mask=wanted, other=0.0)
                ups += tl.dot(widen_finite(w, FACTOR), x, input_precision="ieee") * factors[:, None]
        own_biases = None if biases is None else biases + expert * WIDTH
        leave_outputs(
            sums,
            ups,
            own_biases,
            outs,
            wanted,
            alpha,
            limit,
            routing_weights,
            pairs,
            real,
            out,
            targets,
            OUTPUTS,
            ACTIVATION,
        )


class GroupedExpertWeights(DequantizedWeights):
    """Bytes of all experts, uint8 [count, out, in]; scales, float32 [count, groups, out]; and biases."""

    def take(self, number: int, weight: Tensor, bias: Tensor | None) -> None:
        if not isinstance(weight, CodedWeight):
            raise ModelError(f"experts 0 and {number} have weights of different types")
        self._shape, self._dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        own = groups_of(weight)
        self._size = own.size
        self._put(number, own.weights, own.scales, bias)

    def _dequantize(self, some: slice, matrices: Tensor) -> None:
        assert self.scales is not None
        dequantized(self.weights[some], self.scales[some], self._size, matrices)

    def _multiply(
        self, rows: Tensor, routed: RoutedPairs, out: Tensor, activation: str | Clamped | None
    ) -> None:
        outputs = out.shape[1]
        few = routed.rows < UNPACKED_PAIRS
        width = 32 if few else 64
        multiply_tiles_groups[(triton.cdiv(outputs, width), len(routed.tiles))](
            rows,
            routed.order,
            routed.tiles,
            self.weights,
            self.scales,
            self.biases,
            routed.routing_weights,
            out,
            **constants(routed, activation),
            SIZE=rows.shape[1],
            OUTPUTS=outputs,
            GROUP=self._size,
            N=width,
            STAGES=4 if few else 3,
            FACTOR=factor(rows),
            num_warps=2 if few else 4,
        )


class GroupsMixture(TritonMixture):
    """See `Mixture`."""

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> ExpertWeights:
        return GroupedExpertWeights(count)
