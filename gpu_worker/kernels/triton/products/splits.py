"""Products whose tiles several programs share, each with some of the inputs (split-K).

    splits of a tile    │ sums of inputs 0 .. │ sums of the next │ ..      [splits, tokens, out], float32
                        ──add_splits──▶ bias, residual, result

Sums are [outputs, tokens], because weights are the left operand.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 1024
"""Outputs of a token that a program of `add_splits` takes."""


@triton.jit
def leave_split(
    sums,
    bias,
    out,
    split,
    tokens,
    token,
    wanted,
    output,
    inside,
    OUT: tl.constexpr,
    ADDED: tl.constexpr,
):
    """Store the sums [outputs, tokens] of a split in `out` [splits, tokens, OUT], of tokens that are `wanted`
    and outputs that are `inside`. ADDED: add them to it."""
    if bias is not None:
        sums += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[:, None]
    results = out + (split * tokens + token).to(tl.int64) * OUT + output[:, None]
    stored = inside[:, None] & wanted
    if ADDED:
        sums += tl.load(results, mask=stored, other=0.0).to(tl.float32)
    tl.store(results, sums.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["tokens"])
def add_splits(
    sums,
    bias,
    out,
    tokens,
    SPLITS: tl.constexpr,
    OUT: tl.constexpr,
    PART: tl.constexpr,
    ADDED: tl.constexpr,
):
    """A program adds up PART outputs of a token over SPLITS, sums [SPLITS, tokens, OUT]. ADDED: to `out`."""
    token = tl.program_id(0)
    output = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = output < OUT
    result = tl.zeros((PART,), tl.float32)
    for split in tl.static_range(SPLITS):
        result += tl.load(sums + (split * tokens + token).to(tl.int64) * OUT + output, mask=inside, other=0.0)
    if bias is not None:
        result += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    places = out + token.to(tl.int64) * OUT + output
    if ADDED:
        result += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    tl.store(places, result.to(out.dtype.element_ty), mask=inside)


class Launch(Protocol):
    """Launches the programs of a product, which leave the sums of their splits in `out`."""

    def __call__(self, out: Tensor, bias: Tensor | None, added: bool, /) -> None: ...


def multiply(launch: Launch, splits: int, bias: Tensor | None, out: Tensor, added: bool) -> None:
    """Fill `out` [tokens, out] with a product, or add it. `splits`: programs that share a tile."""
    if splits == 1:
        launch(out, bias, added)
        return
    tokens, outs = out.shape
    sums = torch.empty((splits, tokens, outs), dtype=torch.float32, device=out.device)
    launch(sums, None, False)
    add_splits[(tokens, triton.cdiv(outs, PART))](
        sums, bias, out, tokens, SPLITS=splits, OUT=outs, PART=PART, ADDED=added, num_warps=8
    )
