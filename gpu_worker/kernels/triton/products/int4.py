"""Products with weights of 4 bits on GPUs. Activations are not quantized. See `reference/int4.py`.

    up to 256 tokens    `multiply_int4` unpacks weights in registers: bound by reading the weights
    more                `dequantize_strips` dequantizes the matrix, for cuBLAS: bound by arithmetic

`int4_tile.py` draws the layout of the weights.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
import triton
from torch import Tensor

from gpu_worker.kernels.products import scales_of
from gpu_worker.kernels.reference.quantized import AT_ONCE
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.products.int4_tile import GROUP, STRIP, dequantized, multiply_int4, packed
from gpu_worker.kernels.triton.products.linear import TritonLinear
from gpu_worker.kernels.triton.products.splits import multiply

MOST_TOKENS = 256
"""Tokens up to which `multiply_int4` computes a product. Dequantizing the matrix for cuBLAS moves 5 bytes a
weight, whatever the number of tokens."""

LEAST_SPLIT = 4
"""Strips of the shortest split. Shorter splits cost more than they save."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of the programs of `multiply_int4`."""

    outs: int
    """Outputs of a tile."""
    tokens: int
    """Tokens of a tile."""
    warps: int
    """Warps of a program."""
    stages: int
    """Stages of the pipeline that loads strips."""
    together: int = 1
    """Strips that a program multiplies at a time, each by a warp of its own."""
    splits: int = 1
    """Programs that share the strips of a tile (split-K)."""


def tiling(tokens: int, outs: int, strips: int, processors: int) -> Tiling:
    """A tiling that occupies all `processors` of a GPU: with half of them it reads memory at half the rate.

    Up to 16 tokens a warp multiplies a tile. The warps of a program share its strips and add up their sums in
    the program. With more tokens tiles are larger, because small tiles would read the same tokens too often.
    Programs share the strips of a tile, and another kernel adds up their sums.
    """
    if tokens <= 16:
        few, rows = outs < 32 * 2 * processors, 8 if tokens <= 8 else 16
        return Tiling(16 if few else 32, rows, warps=4, stages=4 if few else 3, together=4)
    if tokens <= 32:
        found = Tiling(64, 32, warps=4, stages=6)
    elif outs < 128 * processors:
        found = Tiling(64, 64, warps=4, stages=5)
    else:
        found = Tiling(128, 64, warps=8, stages=4)
    tiles = -(-outs // found.outs) * -(-tokens // found.tokens)
    return replace(found, splits=max(1, min(2 * processors // tiles, strips // LEAST_SPLIT)))


def fitting(found: Tiling, factor_bytes: int, shared_memory: int) -> Tiling:
    """The same with as many stages as there is room for: words, scales and tokens of strips. Operands of
    float32 are beside them. `factor_bytes`: of a number that is multiplied. `shared_memory`: bytes that a
    program may have."""
    strip, group = int(STRIP), int(GROUP)
    own_outs, own_tokens = found.together * found.outs, found.together * found.tokens
    each = own_outs * (2 * group + 8) + own_tokens * strip * factor_bytes
    beside = 4 * group * (own_outs + own_tokens) if factor_bytes == 4 else 0
    return replace(found, stages=gpu.stages(found.stages, each, beside, shared_memory))


class TritonInt4Linear:
    """See `Linear`. `rows` are rows of the dequantized matrix."""

    def __init__(self, weight: Tensor, bias: Tensor | None, processors: int) -> None:
        self._out, self._in = weight.shape
        self._bias, self._dtype, self._processors = bias, weight.dtype, processors
        self._fp4 = scales_of(weight, "fp4") is not None
        parts = [packed(weight[first : first + AT_ONCE]) for first in range(0, self._out, AT_ONCE)]
        words, scales = zip(*parts, strict=True)
        self._packed, self._scales = torch.cat(words, 1), torch.cat(scales, 1)

    def __call__(self, hidden: Tensor) -> Tensor:
        if len(hidden) > MOST_TOKENS:
            return self._dequantized()(hidden)
        out = hidden.new_empty((len(hidden), self._out), dtype=self._dtype)
        self._multiply(hidden, out, added=False)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        if len(hidden) > MOST_TOKENS:
            self._dequantized().add_to(hidden, residual)
        else:
            self._multiply(hidden, residual, added=True)

    def rows(self, numbers: Tensor) -> Tensor:
        return self._dequantized().rows(numbers)

    def _multiply(self, hidden: Tensor, out: Tensor, added: bool) -> None:
        tokens, strips = len(hidden), len(self._packed)
        room = gpu.shared_memory(hidden.device)
        chosen = fitting(tiling(tokens, self._out, strips, self._processors), hidden.itemsize, room)
        multiply(partial(self._launch, chosen, hidden), chosen.splits, self._bias, out, added)

    def _launch(self, chosen: Tiling, hidden: Tensor, out: Tensor, bias: Tensor | None, added: bool) -> None:
        tokens, strips = len(hidden), len(self._packed)
        tiles = triton.cdiv(tokens, chosen.tokens), triton.cdiv(self._out, chosen.outs)
        multiply_int4[(*tiles, chosen.splits)](
            hidden.contiguous(),
            self._packed,
            self._scales,
            bias,
            out,
            tokens,
            triton.cdiv(strips, chosen.splits),
            IN=self._in,
            OUT=self._out,
            STRIPS=strips,
            OUTS=chosen.outs,
            TOKENS=chosen.tokens,
            TOGETHER=chosen.together,
            STAGES=chosen.stages,
            ADDED=added,
            FP4=self._fp4,
            FACTOR=factor(hidden),
            num_warps=chosen.warps,
        )

    def _dequantized(self) -> TritonLinear:
        """A product with the dequantized matrix, which is freed with it."""
        matrices = torch.empty((1, self._out, self._in), dtype=self._dtype, device=self._packed.device)
        dequantized(self._packed[None], self._scales, matrices, self._fp4)
        return TritonLinear(matrices[0], self._bias, self._dtype)
