"""RMS norm and gated activation: one pass over each row.

    norm      reads and writes tokens * size numbers               a program takes a row, or one head of a row
    gated     reads tokens * 2 * size, writes tokens * size        a program takes a part of a row

The residual is not added here, but by the product before, while its sums are in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def norm_rows(hidden, weight, out, stride, eps, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """`stride`: numbers from a token to the next. A token has one row or more. `out` may be `hidden`."""
    row = tl.program_id(0).to(tl.int64) * stride + tl.program_id(1) * SIZE
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    numbers = tl.load(hidden + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, axis=0) / SIZE + eps)
    # Rounded to the weight's type before the product with it, as the models were trained.
    normed = (numbers * scale).to(weight.dtype.element_ty).to(tl.float32)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (normed * weights).to(out.dtype.element_ty), mask=inside)


@triton.jit
def activated(gate, ACTIVATION: tl.constexpr):
    """Activation of gates, float32. ACTIVATION: silu, gelu or gelu_tanh."""
    if ACTIVATION == "silu":
        result = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "gelu":
        result = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # gelu_tanh: tanh(x) is 1 - 2 / (exp(2 x) + 1)
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        result = gate * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    return result


@triton.jit
def gated_product(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """activation(gate) * up. If ACTIVATION is clamped, it is gpt-oss's: see `products.Clamped`."""
    if ACTIVATION == "clamped":
        gate = tl.where(gate > limit, limit, gate)  # NaN stays NaN
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        result = (up + 1.0) * (gate / (1.0 + tl.exp(-alpha * gate)))
    else:
        result = activated(gate, ACTIVATION) * up
    return result


@triton.jit
def squared(up):
    """Activation of experts without gates: see `products.UNGATED`."""
    up = tl.where(up < 0, 0.0, up)  # NaN stays NaN
    return up * up


@triton.jit
def gate_rows(both, out, SIZE: tl.constexpr, PART: tl.constexpr, ACTIVATION: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = at < SIZE
    gate = tl.load(both + token * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + (token * 2 + 1) * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    result = activated(gate, ACTIVATION) * up
    out_at = out + token * SIZE + at
    tl.store(out_at, result.to(out.dtype.element_ty), mask=inside)


class TritonNorm:
    """See `Norm`."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight, self._eps, self._size = weight, eps, len(weight)
        self._padded = triton.next_power_of_2(self._size)
        self._warps = min(16, max(1, self._padded // 256))

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = hidden.contiguous()
        out = torch.empty_like(hidden)
        self._launch(hidden, out, self._size)
        return out

    def each(self, rows: Tensor) -> None:
        self._launch(rows, rows, rows.stride(0))

    def _launch(self, hidden: Tensor, out: Tensor, stride: int) -> None:
        norm_rows[(len(hidden), hidden.shape[1] // self._size)](
            hidden,
            self._weight,
            out,
            stride,
            self._eps,
            SIZE=self._size,
            PADDED=self._padded,
            num_warps=self._warps,
        )


PART = 1024
"""Outputs of a row that a program of `gate_rows` takes."""


def gated(both: Tensor, activation: str = "silu") -> Tensor:
    """activation(gate) * up of [tokens, 2 * size], whose first half is the gate. See `Kernels.gated`."""
    tokens, size = len(both), both.shape[1] // 2
    out = both.new_empty((tokens, size))
    gate_rows[(tokens, triton.cdiv(size, PART))](
        both, out, SIZE=size, PART=PART, ACTIVATION=activation, num_warps=4
    )
    return out
