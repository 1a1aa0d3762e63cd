"""A mixture of experts with weights of 4 bits: the tiles of `mixture.py`, the strips of `int4_tile.py`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.triton.mixture.mixture import OUTPUTS, ExpertWeights, TritonMixture, own_pairs
from gpu_worker.kernels.triton.norm import activated
from gpu_worker.kernels.triton.products.int4_tile import GROUP, GROUPS, STRIP, packed, scale_of, unpacked


@triton.jit
def multiply_tiles_int4(
    rows,
    order,
    tiles,
    weights,
    scales,
    routing_weights,
    out,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIPS: tl.constexpr,
    EXPERTS_PER_TOKEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    STAGES: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """As `multiply_tiles`; sums are [outputs, pairs], for weights are the left factor.

    weights [experts, STRIPS, outputs, GROUP] and scales [experts, STRIPS, outputs]; with an ACTIVATION gates
    first, then ups.
    """
    GATED: tl.constexpr = ACTIVATION != ""
    WIDTH: tl.constexpr = 2 * OUTPUTS if GATED else OUTPUTS
    tile = tiles + 3 * tl.program_id(0)
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        pairs, real, rows_read, targets = own_pairs(tile, order, EXPERTS_PER_TOKEN, GATED, M)
        outs = tl.program_id(1) * N + tl.arange(0, N)
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
                product = tl.dot(unpacked(words, group, FACTOR), x, input_precision="ieee")
                sums += product * scale_of(strip_scales, group)[:, None]
                if GATED:
                    product = tl.dot(unpacked(up_words, group, FACTOR), x, input_precision="ieee")
                    ups += product * scale_of(up_scales, group)[:, None]
        if GATED:
            sums = activated(sums, ACTIVATION) * ups
        else:
            sums = sums * tl.load(routing_weights + pairs, mask=real, other=0.0)
        results = out + targets * OUTPUTS + outs[:, None]
        tl.store(results, sums.to(out.dtype.element_ty), mask=real & wanted[:, None])


class Int4ExpertWeights(ExpertWeights):
    """Weights of all experts, [count, strips, out, 32], and their scales, [count, strips, out]."""

    kernel = multiply_tiles_int4

    def __init__(self, count: int) -> None:
        super().__init__(count, None)

    def take(self, number: int, weight: Tensor) -> None:
        self._shape = weight.shape[0], weight.shape[1]
        self._put(number, *packed(weight))

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    def tile_rows(self, pairs: int, hidden: Tensor) -> int:
        return min(64, super().tile_rows(pairs, hidden))

    def _tiling(self, device: torch.device, size: int, outputs: int, tile: int) -> dict[str, int]:
        return {"N": OUTPUTS, "STRIPS": self.weights.shape[1], "STAGES": 4, "num_warps": 4}


class Int4Mixture(TritonMixture):
    """See `Mixture`."""

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> ExpertWeights:
        return Int4ExpertWeights(count)
