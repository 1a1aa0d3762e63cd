"""A mixture of experts in two launches, whatever number of experts is selected.

    hidden [tokens, size]
      ──gate, up──▶ [pairs, inner]
      ──down, times routing weight──▶ [pairs, size]
      ──sum of a token's experts──▶ [tokens, size]

A program takes a tile of pairs of one expert (`pairs.py`) and some of the expert's outputs. In a step of few
tokens most tiles have one pair, and nearly all time goes into reading the weights of each selected expert
once. In a prompt a tile is a full matrix, whose rows are gathered as they are read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.products import UNGATED, Clamped, Expert
from gpu_worker.kernels.reference.rows import FP8, quantized
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.formats.fp8 import is_native, widen
from gpu_worker.kernels.triton.mixture.pairs import RoutedPairs, sort_pairs
from gpu_worker.kernels.triton.norm import gated_product, squared

LEAST_PAIRS, MOST_PAIRS = 16, 128
"""Of a tile: what a product of matrices has at least, and what registers have room for as sums."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of the programs of a mixture. Changes times, not results."""

    outputs: int
    """Outputs of an expert that a program computes."""
    depth: int
    """Inputs that it multiplies at a time; half as many of float32."""
    warps: int
    stages: int
    """Stages of the pipeline that loads rows."""


def tiling(pairs: int, gated: bool, shared_memory: int) -> Tiling:
    """For tiles of `pairs` pairs. Fastest on an H100, at the sizes of Qwen3 30B-A3B and gpt-oss 20B.

    The more outputs a program has, the fewer times are rows read from the cache. `gated`: it has gates, as
    many, beside them. `shared_memory`: bytes that a program may have.
    """
    if pairs < MOST_PAIRS:
        return Tiling(64, 128 if pairs == LEAST_PAIRS else 64, 4, 3)
    if shared_memory < 192 << 10:
        return Tiling(64 if gated else 128, 64, 8, 3)
    return Tiling(128 if gated else 256, 64, 8, 4)


@triton.jit
def own_pairs(tile, order, EXPERTS_PER_TOKEN: tl.constexpr, FIRST: tl.constexpr, M: tl.constexpr):
    """Pairs [M] of a tile, whether each exists, the row that it reads, and the row that it writes.

    FIRST: it reads tokens and writes sorted pairs; otherwise it reads sorted pairs and writes pairs.
    """
    places = tl.load(tile + 1) + tl.arange(0, M)
    real = places < tl.load(tile + 2)
    pairs = tl.load(order + places, mask=real, other=0)
    sources = pairs // EXPERTS_PER_TOKEN if FIRST else places
    targets = places if FIRST else pairs
    return pairs, real, sources.to(tl.int64), targets.to(tl.int64)


@triton.jit(do_not_specialize=["first_expert", "experts"])
def multiply_tiles(
    rows,
    order,
    tiles,
    weights,
    scales,
    biases,
    routing_weights,
    out,
    first_expert,
    experts,
    alpha,
    limit,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EXPERTS_PER_TOKEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """Multiply each tile of pairs with weights of its expert, if it is one of `experts` from `first_expert`
    on. `weights`, `scales` and `biases` are of these.

    With an ACTIVATION: hidden states of tokens by gates and ups [2 * OUTPUTS, SIZE], to sorted pairs; if it
    is relu2, by ups alone. Without one: sorted pairs by weights [OUTPUTS, SIZE], times the pair's routing
    weight, to pairs.
    """
    FIRST: tl.constexpr = ACTIVATION != ""
    GATED: tl.constexpr = (ACTIVATION != "") & (ACTIVATION != "relu2")
    tile = tiles + 3 * tl.program_id(1)
    expert = tl.load(tile).to(tl.int64) - first_expert
    if (expert >= 0) & (expert < experts):
        pairs, real, sources, targets = own_pairs(tile, order, EXPERTS_PER_TOKEN, FIRST, M)
        outs = tl.program_id(0) * N + tl.arange(0, N)
        wanted = outs < OUTPUTS
        # First output of the expert in `weights`; a gated expert has a gate and an up for each output.
        first = expert * (2 * OUTPUTS if GATED else OUTPUTS)
        own = weights + first * SIZE + outs[None, :] * SIZE
        sums = tl.zeros([M, N], tl.float32)
        ups = tl.zeros([M, N], tl.float32)
        for start in range(0, SIZE, K):
            at = start + tl.arange(0, K)
            inside = at < SIZE
            x = tl.load(
                rows + sources[:, None] * SIZE + at[None, :], mask=real[:, None] & inside[None, :], other=0.0
            ).to(FACTOR)
            held = inside[:, None] & wanted[None, :]
            w = widen(tl.load(own + at[:, None], mask=held, other=0), FACTOR, NATIVE_FP8)
            sums = tl.dot(x, w, sums, input_precision="ieee")
            if GATED:
                w = tl.load(own + OUTPUTS * SIZE + at[:, None], mask=held, other=0)
                ups = tl.dot(x, widen(w, FACTOR, NATIVE_FP8), ups, input_precision="ieee")
        if scales is not None:
            sums = sums * tl.load(scales + first + outs, mask=wanted, other=0.0)[None, :]
            if GATED:
                ups = ups * tl.load(scales + first + OUTPUTS + outs, mask=wanted, other=0.0)[None, :]
        if biases is not None:
            sums += tl.load(biases + first + outs, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if GATED:
                ups += tl.load(biases + first + OUTPUTS + outs, mask=wanted, other=0.0).to(tl.float32)[
                    None, :
                ]
        if GATED:
            sums = gated_product(sums, ups, alpha, limit, ACTIVATION)
        elif FIRST:
            sums = squared(sums)
        else:
            sums = sums * tl.load(routing_weights + pairs, mask=real, other=0.0)[:, None]
        at_out = out + targets[:, None] * OUTPUTS + outs[None, :]
        tl.store(at_out, sums.to(out.dtype.element_ty), mask=real[:, None] & wanted[None, :])


Own = tuple[Tensor, Tensor | None, Tensor | None]
"""Weights, scales and biases of experts."""


class TritonMixture:
    """See `Mixture`."""

    def __init__(
        self,
        experts: Iterable[Expert],
        count: int,
        activation: str | Clamped,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        """`weight_dtype`: type that weights are rounded to, int8 or fp8, with a scale for each output. None:
        weights stay as they are."""
        self._count, self._activation = count, activation
        self._up, self._down = self._new_weights(count, weight_dtype), self._new_weights(count, weight_dtype)
        for number, expert in enumerate(experts):
            self._up.take(number, expert.up, expert.up_bias)
            self._down.take(number, expert.down, expert.down_bias)

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor) -> Tensor:
        """The results of a token's experts are added up in the order in which the experts were selected."""
        tokens, top_k = selected_experts.shape
        pairs = selected_experts.numel()
        size, inner = self._down.shape
        rows = self._up.tile_rows(pairs, hidden)
        routed = sort_pairs(selected_experts, routing_weights, self._count, rows)
        activations, results = hidden.new_empty((pairs, inner)), hidden.new_empty((pairs, size))
        self._up.multiply(hidden.contiguous(), routed, activations, self._activation)
        self._down.multiply(activations, routed, results, None)
        return results.view(tokens, top_k, size).sum(1, dtype=torch.float32)

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> "ExpertWeights":
        return ExpertWeights(count, weight_dtype)


class ExpertWeights:
    """Weights of all experts, [count, out, in], the scales of their outputs, float32 [count, out], and their
    biases, [count, out]."""

    weights: Tensor
    scales: Tensor | None = None
    biases: Tensor | None = None

    def __init__(self, count: int, weight_dtype: torch.dtype | None) -> None:
        self._count, self._weight_dtype = count, weight_dtype

    def take(self, number: int, weight: Tensor, bias: Tensor | None) -> None:
        scales = None
        if self._weight_dtype is not None:
            weight, scales = quantized(weight, self._weight_dtype)
            weight = weight.view(torch.uint8) if self._weight_dtype == FP8 else weight
        self._put(number, weight, scales, bias)

    def _put(self, number: int, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> None:
        if number == 0:
            self.weights = weight.new_empty((self._count, *weight.shape))
            self.scales = None if scales is None else scales.new_empty((self._count, *scales.shape))
            self.biases = None if bias is None else bias.new_empty((self._count, *bias.shape))
        self.weights[number] = weight
        if scales is not None and self.scales is not None:
            self.scales[number] = scales
        if bias is not None and self.biases is not None:
            self.biases[number] = bias

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of each expert."""
        return self.weights.shape[1], self.weights.shape[2]

    def tile_rows(self, pairs: int, hidden: Tensor) -> int:
        """Pairs of a tile: twice an expert's average, so that few experts need a second tile, and at most
        what registers have room for as sums."""
        most = 32 if hidden.dtype == torch.float32 else MOST_PAIRS
        wanted: int = triton.next_power_of_2(2 * pairs // self._count)
        return min(most, max(LEAST_PAIRS, wanted))

    def multiply(
        self, rows: Tensor, routed: RoutedPairs, out: Tensor, activation: str | Clamped | None
    ) -> None:
        """See `multiply_tiles`. `activation`: None for the product with down."""
        multiply(rows, routed, out, activation, (self.weights, self.scales, self.biases))


def multiply(
    rows: Tensor,
    routed: RoutedPairs,
    out: Tensor,
    activation: str | Clamped | None,
    own: "Own",
    first_expert: int = 0,
) -> None:
    """See `ExpertWeights.multiply`. `own`: of the experts from `first_expert` on."""
    weights, scales, biases = own
    size, outputs = rows.shape[1], out.shape[1]
    chosen = tiling(routed.rows, is_gated(activation), gpu.shared_memory(rows.device))
    width = min(chosen.outputs, max(16, triton.next_power_of_2(outputs)))
    multiply_tiles[(triton.cdiv(outputs, width), len(routed.tiles))](
        rows,
        routed.order,
        routed.tiles,
        weights,
        scales,
        biases,
        routed.routing_weights,
        out,
        first_expert,
        len(weights),
        **constants(routed, activation),
        SIZE=size,
        OUTPUTS=outputs,
        N=width,
        K=min(chosen.depth // max(1, weights.itemsize // 2), max(16, triton.next_power_of_2(size))),
        NATIVE_FP8=is_native(rows.device),
        FACTOR=factor(rows),
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )


def is_gated(activation: str | Clamped | None) -> bool:
    """Whether a product's outputs have gates beside them. `activation`: None for the product with down."""
    return activation not in (None, UNGATED)


def constants(routed: RoutedPairs, activation: str | Clamped | None) -> dict[str, Any]:
    """Arguments that the kernels of all kinds of weights have."""
    clamped = activation if isinstance(activation, Clamped) else None
    return {
        "alpha": clamped.alpha if clamped else 0.0,
        "limit": clamped.limit if clamped else 0.0,
        "ACTIVATION": "clamped" if clamped else activation or "",
        "EXPERTS_PER_TOKEN": routed.experts_per_token,
        "M": routed.rows,
    }
