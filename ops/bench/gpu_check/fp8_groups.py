"""Weights of fp8 with scales of groups of inputs: products against the reference's, and their times."""

from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight, Codes
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.triton.kernels import GroupsTriton, TritonKernels
from gpu_worker.kernels.triton.products.fp8_groups import MOST_TOKENS
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random
from ops.bench.gpu_check.int4 import ALLOWED, SHAPES, each, error_of

SIZE = 128
"""Inputs of a group."""
TOKENS = (1, 8, 16, 64, MOST_TOKENS, MOST_TOKENS + 1, 2048)
MANY_BYTES = 512 << 20
"""Of weights that a turn goes through: more than any cache, as a model's layers are."""


def fp8_in_groups(shape: tuple[int, int], dtype: torch.dtype, bench: Bench) -> Tensor:
    """A random weight [out, in]."""
    numbers = random(shape, torch.float32, bench).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = random((shape[0], -(-shape[1] // SIZE)), torch.float32, bench).abs() / shape[1] ** 0.5
    return CodedWeight.of(Codes(numbers, SIZE, scales, "fp8"), dtype)


def products(_: TritonKernels, bench: Bench) -> float:
    """How far products are off, with and without a residual, as a share of what is allowed."""
    worst = 0.0
    for dtype in (torch.float32,) if bench.dry else ALLOWED:
        for outs, size in [(70, 190)] if bench.dry else [(4096, 4096), (1001, 1000)]:
            weight, bias = fp8_in_groups((outs, size), dtype, bench), random((outs,), dtype, bench)
            own, expected = (
                kernels.linear(weight, bias) for kernels in (GroupsTriton(bench.device), CodedReference())
            )
            for tokens in (2, 17) if bench.dry else (1, 17, 64, MOST_TOKENS + 1):
                worst = max(worst, error_of(own, expected, random((tokens, size), dtype, bench)))
    return worst


def measure(bench: Bench) -> None:
    """One row for each shape and number of tokens."""
    shapes, dtype = ({"tiny": (40, 70)}, torch.float32) if bench.dry else (SHAPES, torch.bfloat16)
    for name, (outs, size) in shapes.items():
        if not bench.has_time(f"products of {name} in fp8 of groups"):
            break
        count = 1 if bench.dry else -(-MANY_BYTES // (outs * size))
        layers = [
            GroupsTriton(bench.device).linear(fp8_in_groups((outs, size), dtype, bench)) for _ in range(count)
        ]
        plain = [TritonKernels(bench.device).linear(random((outs, size), dtype, bench)) for _ in range(count)]
        for tokens in (1,) if bench.dry else TOKENS:
            x = random((tokens, size), dtype, bench)
            row: dict[str, Any] = {"product": name, "tokens": tokens}
            times = [bench.seconds(each(products, x)) / count for products in (layers, plain)]
            row |= {"fp8 us": round(times[0] * 1e6, 1), "bf16 us": round(times[1] * 1e6, 1)}
            if bench.rates.bandwidth:
                row["of copy"] = round(outs * size * 1.03 / times[0] / bench.rates.bandwidth, 3)
            bench.note("fp8 group products", row)
        del layers, plain
