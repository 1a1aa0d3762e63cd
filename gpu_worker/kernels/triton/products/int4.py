"""Products with weights of 4 bits on GPUs: they are read as they lie in memory, and widened in registers.

    up to 256 tokens    `multiply_int4`: bound by the bytes of the weights
    more                the matrix is widened as a whole, for cuBLAS: bound by arithmetic

See `reference/int4.py`; activations stay as they are. How weights lie is drawn in `int4_tile.py`.
"""

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from gpu_worker.kernels.reference.quantized import AT_ONCE
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.products.int4_tile import add_spans, multiply_int4, packed, widen_strips
from gpu_worker.kernels.triton.products.linear import TritonLinear

MOST = 256
"""Tokens of a product whose weights are widened in registers. Widening a matrix takes as long as it takes to
move 5 bytes a weight, whatever the number of tokens."""

WIDENED = 64
"""Outputs of which a program widens a strip."""

PART = 1024
"""Outputs of a token whose sums a program adds up."""

LEAST_SPAN = 4
"""Strips; shorter ones would cost more than they save."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut into programs of `multiply_int4`."""

    outs: int
    tokens: int
    warps: int
    stages: int
    """Strips that are there or on their way."""
    together: int = 1
    """Strips at once."""
    spans: int = 1
    """Programs that share the strips of a tile."""


def tiling(tokens: int, outs: int, strips: int, processors: int) -> Tiling:
    """Fills a GPU of `processors`: one that is half empty reads at half its rate.

    Up to 16 tokens a tile is so small that a warp multiplies it; the strips are shared among the warps, which
    add up where they are. With more tokens, tiles of few outputs would read these too often: they are large,
    and the strips are shared among programs, whose sums are added up by another kernel.
    """
    if tokens <= 16:
        few, rows = outs < 32 * 2 * processors, 8 if tokens <= 8 else 16
        return Tiling(16 if few else 32, rows, warps=4, stages=4 if few else 3, together=4)
    if tokens <= 32:
        chosen = Tiling(64, 32, warps=4, stages=6)
    elif outs < 128 * processors:
        chosen = Tiling(64, 64, warps=4, stages=5)
    else:
        chosen = Tiling(128, 64, warps=8, stages=4)
    tiles = -(-outs // chosen.outs) * -(-tokens // chosen.tokens)
    return replace(chosen, spans=max(1, min(2 * processors // tiles, strips // LEAST_SPAN)))


class TritonInt4Linear:
    """See `Linear`. `rows` are those of the widened matrix."""

    def __init__(self, weight: Tensor, bias: Tensor | None, processors: int) -> None:
        self._out, self._in = weight.shape
        self._bias, self._dtype, self._processors = bias, weight.dtype, processors
        parts = [packed(part) for part in torch.split(weight, AT_ONCE)]
        halves, scales = zip(*parts, strict=True)
        self._packed, self._scales = torch.cat(halves, 1), torch.cat(scales, 1)

    def __call__(self, hidden: Tensor) -> Tensor:
        if len(hidden) > MOST:
            return self._widened()(hidden)
        out = hidden.new_empty((len(hidden), self._out), dtype=self._dtype)
        self._multiply(hidden, out, added=False)
        return out

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        if len(hidden) > MOST:
            self._widened().add_to(hidden, residual)
        else:
            self._multiply(hidden, residual, added=True)

    def rows(self, numbers: Tensor) -> Tensor:
        return self._widened().rows(numbers)

    def _multiply(self, hidden: Tensor, out: Tensor, added: bool) -> None:
        tokens, strips = len(hidden), len(self._packed)
        chosen = tiling(tokens, self._out, strips, self._processors)
        if chosen.spans == 1:
            self._launch(chosen, hidden, out, self._bias, added)
            return
        sums = torch.empty((chosen.spans, tokens, self._out), dtype=torch.float32, device=out.device)
        self._launch(chosen, hidden, sums, None, False)
        add_spans[(tokens, triton.cdiv(self._out, PART))](
            sums,
            self._bias,
            out,
            tokens,
            SPANS=chosen.spans,
            OUT=self._out,
            PART=PART,
            ADDED=added,
            num_warps=8,
        )

    def _launch(self, chosen: Tiling, hidden: Tensor, out: Tensor, bias: Tensor | None, added: bool) -> None:
        tokens, strips = len(hidden), len(self._packed)
        tiles = triton.cdiv(tokens, chosen.tokens), triton.cdiv(self._out, chosen.outs)
        multiply_int4[(*tiles, chosen.spans)](
            hidden.contiguous(),
            self._packed,
            self._scales,
            bias,
            out,
            tokens,
            triton.cdiv(strips, chosen.spans),
            IN=self._in,
            OUT=self._out,
            STRIPS=strips,
            OUTS=chosen.outs,
            TOKENS=chosen.tokens,
            TOGETHER=chosen.together,
            STAGES=chosen.stages,
            ADDED=added,
            FACTOR=factor(hidden),
            num_warps=chosen.warps,
        )

    def _widened(self) -> TritonLinear:
        """The product with the matrix widened, for as long as it is needed."""
        matrix = torch.empty((self._out, self._in), dtype=self._dtype, device=self._packed.device)
        widen_strips[(len(self._packed), triton.cdiv(self._out, WIDENED))](
            self._packed, self._scales, matrix, IN=self._in, OUT=self._out, OUTS=WIDENED, num_warps=4
        )
        return TritonLinear(matrix, self._bias, self._dtype)
