"""A mixture of feed-forward blocks: two launches for all blocks that are chosen, however many they are.

    hidden [tokens, size] ──gate, up──▶ [pairs, inner] ──down, shares──▶ [pairs, size] ──sum──▶ [tokens, size]

A program takes a tile of pairs that go to the same block (`pairs.py`) and some of the block's outputs. In a
step of a few tokens most tiles have one real row: read are the weights of the blocks that are chosen, once
each, and that is nearly all. In a prompt a tile is a full matrix, and its rows are gathered on their way.
"""

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.interface import FP8
from gpu_worker.kernels.reference.pages import quantized
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.formats.fp8 import is_native, widen
from gpu_worker.kernels.triton.mixture.pairs import grouped
from gpu_worker.kernels.triton.norm import activated

OUTPUTS = 64
"""Of a block, that a program computes."""
DEPTH_BYTES = 128
"""Of a row, that it has before it at a time."""


@triton.jit
def multiply_tiles(
    rows,
    order,
    tiles,
    weights,
    scales,
    shares,
    out,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    FACTOR: tl.constexpr,
):
    """With an ACTIVATION: from tokens to places, gates and ups [2 * OUTPUTS, SIZE] of a block. Without one:
    from places to pairs, weights [OUTPUTS, SIZE] of a block, and what comes of it times the pair's share."""
    GATED: tl.constexpr = ACTIVATION != ""
    tile = tiles + 3 * tl.program_id(0)
    block = tl.load(tile).to(tl.int64)
    if block >= 0:
        places = tl.load(tile + 1) + tl.arange(0, M)
        real = places < tl.load(tile + 2)
        pairs = tl.load(order + places, mask=real, other=0)
        outs = tl.program_id(1) * N + tl.arange(0, N)
        wanted = outs < OUTPUTS
        sources = (pairs // PER_TOKEN if GATED else places).to(tl.int64)
        # Weights of the block, whose outputs count twice if each has a gate.
        first = block * (2 * OUTPUTS if GATED else OUTPUTS)
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
            sums = sums * tl.load(shares + pairs, mask=real, other=0.0)[:, None]
        targets = (places if GATED else pairs).to(tl.int64)
        at_out = out + targets[:, None] * OUTPUTS + outs[None, :]
        tl.store(at_out, sums.to(out.dtype.element_ty), mask=real[:, None] & wanted[None, :])


class TritonMixture:
    """See `Mixture`."""

    def __init__(
        self,
        blocks: Iterable[tuple[Tensor, Tensor]],
        count: int,
        activation: str,
        numbers: torch.dtype | None = None,
    ) -> None:
        """`numbers`: int8 or fp8, which the weights become, each output with a scale; None: they stay."""
        self._count, self._activation = count, activation
        self._up, self._down = self._stack(count, numbers), self._stack(count, numbers)
        for number, (up, down) in enumerate(blocks):
            self._up.take(number, up)
            self._down.take(number, down)

    def __call__(self, hidden: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """A token's blocks are added up in the order in which they are chosen."""
        tokens, per_token = chosen.shape
        pairs = chosen.numel()
        size, inner = self._down.shape
        rows = self._up.tile_rows(pairs, hidden)
        groups = grouped(chosen, self._count, rows)
        between = hidden.new_empty((pairs, inner))
        given = torch.empty((pairs, size), dtype=torch.float32, device=hidden.device)
        shares = shares.contiguous()
        self._up.multiply(hidden.contiguous(), groups, shares, between, per_token, self._activation, rows)
        self._down.multiply(between, groups, shares, given, per_token, "", rows)
        return given.view(tokens, per_token, size).sum(1)

    def _stack(self, count: int, numbers: torch.dtype | None) -> "Stack":
        return Stack(count, numbers)


class Stack:
    """Weights of all blocks, [count, out, in], and the scales of their outputs, float32 [count, out]."""

    weights: Tensor
    scales: Tensor | None = None

    def __init__(self, count: int, numbers: torch.dtype | None) -> None:
        self._count, self._numbers = count, numbers

    def take(self, number: int, weight: Tensor) -> None:
        scales = None
        if self._numbers is not None:
            weight, scales = quantized(weight, self._numbers)
            weight = weight.view(torch.uint8) if self._numbers == FP8 else weight
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
        """(out, in) of a block."""
        return self.weights.shape[1], self.weights.shape[2]

    def tile_rows(self, pairs: int, hidden: Tensor) -> int:
        """Rows of a tile: so many that few blocks have more, as far as the sums find room in registers."""
        most = 32 if hidden.dtype == torch.float32 else 128
        wanted: int = triton.next_power_of_2(2 * pairs // self._count)
        return min(most, max(16, wanted))

    def multiply(
        self,
        rows: Tensor,
        groups: tuple[Tensor, Tensor],
        shares: Tensor,
        out: Tensor,
        per_token: int,
        activation: str,
        tile: int,
    ) -> None:
        """See `multiply_tiles`. `groups`: order of the pairs, and their tiles of `tile` rows."""
        order, tiles = groups
        size, outputs = rows.shape[1], out.shape[1]
        multiply_tiles[(len(tiles), triton.cdiv(outputs, OUTPUTS))](
            rows,
            order,
            tiles,
            self.weights,
            self.scales,
            shares,
            out,
            SIZE=size,
            OUTPUTS=outputs,
            PER_TOKEN=per_token,
            ACTIVATION=activation,
            M=tile,
            N=min(OUTPUTS, max(16, triton.next_power_of_2(outputs))),
            K=min(DEPTH_BYTES // self.weights.itemsize, max(16, triton.next_power_of_2(size))),
            NATIVE_FP8=is_native(rows.device),
            FACTOR=factor(rows),
            num_warps=8 if tile == 128 else 4,
            num_stages=3,
        )
