"""The online softmax (Milakov and Gimelshein 2018): scores become weights as they come, a tile at a time.

largest    float32 [M]      the largest score of each row so far, in units of ln 2
total      float32 [M]      the sum of weights: 2 to the power of score less largest
sums       float32 [M, D]   values times weights, in parts (`packed.py`)
ceiling    float32          the largest scale of values so far; the sums are in units of it
"""

import triton
import triton.language as tl

from gpu_worker.kernels.triton.kv.packed import together


@triton.jit
def products(queries, rows):
    """Scores [M, N] of queries [M, D] and rows of pages [N, D], both in parts."""
    result = tl.dot(queries[0], tl.trans(rows[0]), input_precision="ieee")
    for part in tl.static_range(1, len(rows)):
        result = tl.dot(queries[part], tl.trans(rows[part]), result, input_precision="ieee")
    return result


@triton.jit
def weigh(scores, unit, largest, total):
    """Weights [M, N] of a tile's scores, what is left of earlier ones [M], `largest`, `total` with the tile.

    `unit` [M]: of the scores, in units of ln 2, which the exponential multiplies by on its way.
    """
    risen = tl.maximum(largest, tl.max(scores, axis=1) * unit)
    base = tl.maximum(risen, -1e30)  # of a row that has seen nothing yet, too, it can be taken away
    weights = tl.exp2(scores * unit[:, None] - base[:, None])
    faded = tl.exp2(largest - base)
    return weights, faded, risen, total * faded + tl.sum(weights, axis=1)


@triton.jit
def in_ceiling(weights, faded, scales, ceiling):
    """`weights` of values whose scales are `scales` [N], `faded` and `ceiling` with the tile.

    In units of the ceiling no weight grows: float16 holds it, and all that counts beside the largest.
    """
    higher = tl.maximum(ceiling, tl.max(scales, axis=0))
    return weights * (scales * (1.0 / higher))[None, :], faded * (ceiling / higher), higher


@triton.jit
def mix(sums, weights, faded, values):
    """What is left of the sums, and values [N, D] times weights [M, N]."""
    factors, result = weights.to(values[0].dtype), ()
    for part in tl.static_range(len(values)):
        left = sums[part] * faded[:, None]
        result += (tl.dot(factors, values[part], left, input_precision="ieee"),)  # type: ignore[assignment]
    return result


@triton.jit
def outcome(sums, largest, total, scale):
    """Values on average [M, D], of sums in units of `scale`, and the logarithm, to base 2, of `total` [M]."""
    divisor = tl.where(total == 0.0, 1.0, total)  # nothing was seen
    return together(sums) * (scale / divisor)[:, None], largest + tl.log2(divisor)
