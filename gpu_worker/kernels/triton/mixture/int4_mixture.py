"""A mixture of experts with weights of 4 bits: the tiles of `mixture.py`, the strips of `int4_tile.py`.

`multiply_tiles_int4` unpacks weights in registers. Of many pairs it does not: see `dequantized.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import Clamped, scales_of
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.mixture.dequantized import UNPACKED_PAIRS, DequantizedWeights, leave_outputs
from gpu_worker.kernels.triton.mixture.mixture import (
    ExpertWeights,
    Tiling,
    TritonMixture,
    constants,
    is_gated,
    own_pairs,
)
from gpu_worker.kernels.triton.mixture.pairs import RoutedPairs
from gpu_worker.kernels.triton.products.int4_tile import (
    GROUP,
    GROUPS,
    STRIP,
    dequantized,
    packed,
    scale_of,
    unpacked,
)


@triton.jit
def multiply_tiles_int4(
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
    STRIPS: tl.constexpr,
    EXPERTS_PER_TOKEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
    FP4: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """As `multiply_tiles`; sums are [outputs, pairs], for weights are the left factor.

    weights [experts, STRIPS, outputs, GROUP] and scales [experts, STRIPS, outputs]; with an ACTIVATION gates
    first, then ups; if it is relu2, ups alone.
    """
    FIRST: tl.constexpr = ACTIVATION != ""
    GATED: tl.constexpr = (ACTIVATION != "") & (ACTIVATION != "relu2")
    WIDTH: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    tile = tiles + 3 * tl.program_id(1)
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        pairs, real, rows_read, targets = own_pairs(tile, order, EXPERTS_PER_TOKEN, FIRST, M)
        outs = tl.program_id(0) * N + tl.arange(0, N)
        wanted = outs < OUTPUTS
        number = tl.arange(0, GROUP)
        sources = rows + rows_read * SIZE
        sums = tl.zeros((N, M), tl.float32)
        ups = tl.zeros((N, M), tl.float32)
        for strip in tl.range(0, STRIPS, num_stages=STAGES):
            at = (expert * STRIPS + strip) * WIDTH + outs
            held = at[:, None] * GROUP + number
            words = tl.load(weights + held, mask=wanted[:, None], other=0)
            strip_scales = tl.load(scales + at, mask=wanted, other=0)
            if GATED:
                up_words = tl.load(weights + OUTPUTS * GROUP + held, mask=wanted[:, None], other=0)
                up_scales = tl.load(scales + OUTPUTS + at, mask=wanted, other=0)
            for group in tl.static_range(GROUPS):
                place = (number + strip * STRIP + group * GROUP)[:, None]
                x = tl.load(sources + place, mask=real & (place < SIZE), other=0.0).to(FACTOR)
                product = tl.dot(unpacked(words, group, FP4, FACTOR), x, input_precision="ieee")
                sums += product * scale_of(strip_scales, group)[:, None]
                if GATED:
                    product = tl.dot(unpacked(up_words, group, FP4, FACTOR), x, input_precision="ieee")
                    ups += product * scale_of(up_scales, group)[:, None]
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


def unpacked_tiling(pairs: int, gated: bool, fp4: bool) -> Tiling:
    """See `tiling`. A strip has 128 inputs."""
    if pairs == UNPACKED_PAIRS:
        if not fp4:  # larger tiles would not fit into registers
            return Tiling(64, 128, 4, 4)
        return Tiling(64, 128, 4, 2) if gated else Tiling(128, 128, 4, 3)
    return Tiling(32 if gated else 64, 128, 2, 3)


class Int4ExpertWeights(DequantizedWeights):
    """Weights of all experts, [count, strips, out, 32], their scales, [count, strips, out], and biases."""

    _fp4: bool

    def take(self, number: int, weight: Tensor, bias: Tensor | None) -> None:
        self._shape, self._dtype = (weight.shape[0], weight.shape[1]), weight.dtype
        fp4 = scales_of(weight, "fp4") is not None
        if number > 0 and fp4 != self._fp4:
            raise ModelError(f"experts 0 and {number} have weights of different types")
        self._fp4 = fp4
        self._put(number, *packed(weight), bias)

    def _dequantize(self, some: slice, matrices: Tensor) -> None:
        assert self.scales is not None
        dequantized(self.weights[some], self.scales[some], matrices, self._fp4)

    def _multiply(
        self, rows: Tensor, routed: RoutedPairs, out: Tensor, activation: str | Clamped | None
    ) -> None:
        outputs = out.shape[1]
        chosen = unpacked_tiling(routed.rows, is_gated(activation), self._fp4)
        multiply_tiles_int4[(triton.cdiv(outputs, chosen.outputs), len(routed.tiles))](
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
            STRIPS=self.weights.shape[1],
            N=chosen.outputs,
            STAGES=chosen.stages,
            FP4=self._fp4,
            FACTOR=factor(rows),
            num_warps=chosen.warps,
        )


class Int4Mixture(TritonMixture):
    """See `Mixture`."""

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> ExpertWeights:
        return Int4ExpertWeights(count)
