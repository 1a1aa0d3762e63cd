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
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.reference.rows import FP8, quantized
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.formats.fp8 import is_native, widen
from gpu_worker.kernels.triton.mixture.pairs import sort_pairs
from gpu_worker.kernels.triton.norm import activated

OUTPUTS = 64
"""Outputs of an expert that a program computes."""
DEPTH_BYTES = 128
"""Bytes of a row that a program reads at a time."""


@triton.jit
def own_pairs(tile, order, EXPERTS_PER_TOKEN: tl.constexpr, GATED: tl.constexpr, M: tl.constexpr):
    """Pairs [M] of a tile, whether each exists, the row that it reads, and the row that it writes.

    GATED: it reads tokens and writes sorted pairs; otherwise it reads sorted pairs and writes pairs.
    """
    places = tl.load(tile + 1) + tl.arange(0, M)
    real = places < tl.load(tile + 2)
    pairs = tl.load(order + places, mask=real, other=0)
    sources = pairs // EXPERTS_PER_TOKEN if GATED else places
    targets = places if GATED else pairs
    return pairs, real, sources.to(tl.int64), targets.to(tl.int64)


@triton.jit
def multiply_tiles(
    rows,
    order,
    tiles,
    weights,
    scales,
    routing_weights,
    out,
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
    """Multiply each tile of pairs with weights of its expert.

    With an ACTIVATION: hidden states of tokens by gates and ups [2 * OUTPUTS, SIZE], to sorted pairs. Without
    one: sorted pairs by weights [OUTPUTS, SIZE], times the pair's routing weight, to pairs.
    """
    GATED: tl.constexpr = ACTIVATION != ""
    tile = tiles + 3 * tl.program_id(0)
    expert = tl.load(tile).to(tl.int64)
    if expert >= 0:
        pairs, real, sources, targets = own_pairs(tile, order, EXPERTS_PER_TOKEN, GATED, M)
        outs = tl.program_id(1) * N + tl.arange(0, N)
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
        if GATED:
            sums = activated(sums, ACTIVATION) * ups
        else:
            sums = sums * tl.load(routing_weights + pairs, mask=real, other=0.0)[:, None]
        at_out = out + targets[:, None] * OUTPUTS + outs[None, :]
        tl.store(at_out, sums.to(out.dtype.element_ty), mask=real[:, None] & wanted[None, :])


class TritonMixture:
    """See `Mixture`."""

    def __init__(
        self,
        experts: Iterable[tuple[Tensor, Tensor]],
        count: int,
        activation: str,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        """`weight_dtype`: type that weights are rounded to, int8 or fp8, with a scale for each output. None:
        weights stay as they are."""
        self._count, self._activation = count, activation
        self._up, self._down = self._new_weights(count, weight_dtype), self._new_weights(count, weight_dtype)
        for number, (up, down) in enumerate(experts):
            self._up.take(number, up)
            self._down.take(number, down)

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor) -> Tensor:
        """The results of a token's experts are added up in the order in which the experts were selected."""
        tokens, top_k = selected_experts.shape
        pairs = selected_experts.numel()
        size, inner = self._down.shape
        rows = self._up.tile_rows(pairs, hidden)
        sorted_pairs = sort_pairs(selected_experts, self._count, rows)
        activations = hidden.new_empty((pairs, inner))
        results = torch.empty((pairs, size), dtype=torch.float32, device=hidden.device)
        weights = routing_weights.contiguous()
        self._up.multiply(
            hidden.contiguous(), sorted_pairs, weights, activations, top_k, self._activation, rows
        )
        self._down.multiply(activations, sorted_pairs, weights, results, top_k, "", rows)
        return results.view(tokens, top_k, size).sum(1)

    def _new_weights(self, count: int, weight_dtype: torch.dtype | None) -> "ExpertWeights":
        return ExpertWeights(count, weight_dtype)


class ExpertWeights:
    """Weights of all experts, [count, out, in], and the scales of their outputs, float32 [count, out]."""

    weights: Tensor
    scales: Tensor | None = None
    kernel: ClassVar[Any] = multiply_tiles

    def __init__(self, count: int, weight_dtype: torch.dtype | None) -> None:
        self._count, self._weight_dtype = count, weight_dtype

    def take(self, number: int, weight: Tensor) -> None:
        scales = None
        if self._weight_dtype is not None:
            weight, scales = quantized(weight, self._weight_dtype)
            weight = weight.view(torch.uint8) if self._weight_dtype == FP8 else weight
        self._put(number, weight, scales)

    def _put(self, number: int, weight: Tensor, scales: Tensor | None) -> None:
        if number == 0:
            self.weights = weight.new_empty((self._count, *weight.shape))
            self.scales = None if scales is None else scales.new_empty((self._count, *scales.shape))
        self.weights[number] = weight
        if scales is not None and self.scales is not None:
            self.scales[number] = scales

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of each expert."""
        return self.weights.shape[1], self.weights.shape[2]

    def tile_rows(self, pairs: int, hidden: Tensor) -> int:
        """Pairs of a tile: twice an expert's average, so that few experts need a second tile, and at most
        what registers have room for as sums."""
        most = 32 if hidden.dtype == torch.float32 else 128
        wanted: int = triton.next_power_of_2(2 * pairs // self._count)
        return min(most, max(16, wanted))

    def multiply(
        self,
        rows: Tensor,
        sorted_pairs: tuple[Tensor, Tensor],
        routing_weights: Tensor,
        out: Tensor,
        experts_per_token: int,
        activation: str,
        tile: int,
    ) -> None:
        """See `multiply_tiles`. `sorted_pairs`: of `sort_pairs`, in tiles of `tile` pairs."""
        order, tiles = sorted_pairs
        size, outputs = rows.shape[1], out.shape[1]
        self.kernel[(len(tiles), triton.cdiv(outputs, OUTPUTS))](
            rows,
            order,
            tiles,
            self.weights,
            self.scales,
            routing_weights,
            out,
            SIZE=size,
            OUTPUTS=outputs,
            EXPERTS_PER_TOKEN=experts_per_token,
            ACTIVATION=activation,
            M=tile,
            FACTOR=factor(rows),
            **self._tiling(rows.device, size, outputs, tile),
        )

    def _tiling(self, device: torch.device, size: int, outputs: int, tile: int) -> dict[str, int]:
        """Further constants of the kernel, for rows of `size` numbers and tiles of `tile` pairs."""
        return {
            "N": min(OUTPUTS, max(16, triton.next_power_of_2(outputs))),
            "K": min(DEPTH_BYTES // self.weights.itemsize, max(16, triton.next_power_of_2(size))),
            "NATIVE_FP8": is_native(device),
            "num_warps": 8 if tile == 128 else 4,
            "num_stages": 3,
        }
