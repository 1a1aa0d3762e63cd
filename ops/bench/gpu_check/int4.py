"""Weights of 4 bits: products against the reference's, their times beside cuBLAS's, and whole steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.triton.kernels import Int4Triton, TritonKernels
from gpu_worker.kernels.triton.products.int4 import MOST_TOKENS
from ops.bench.gpu_check import steps
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random

ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 5e-3, torch.float16: 1e-3}
"""Of products, relative (2-norms): the order of sums, and that results are rounded; so are, where a matrix is
widened as a whole, its weights."""

TOKENS = (1, 8, 16, 32, 64, 128, MOST_TOKENS, MOST_TOKENS + 1, 2048)
SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "gate, up": (28_672, 4096), "down": (4096, 14_336)}
"""[out, in] of the products of a Llama of 8 billion weights."""

MANY_BYTES = 256 << 20
"""Of weights that a turn goes through: more than any cache, as a model's layers are."""

BATCHES = (1, 64)


def products(dtype: torch.dtype, _: TritonKernels, bench: Bench) -> float:
    """How far products are off, with and without a residual, as a share of what is allowed."""
    worst = 0.0
    shapes = [(70, 90)] if bench.dry else [(4096, 4096), (28_672, 4096), (1001, 1000)]
    for outs, size in shapes:
        weight, bias = random((outs, size), dtype, bench), random((outs,), dtype, bench)
        own = Int4Triton(bench.device).linear(weight, bias)
        expected = Int4Reference().linear(weight, bias)
        for tokens in (2, 17) if bench.dry else (1, 16, 17, 64, MOST_TOKENS + 1):
            worst = max(worst, error_of(own, expected, random((tokens, size), dtype, bench)))
    return worst


def error_of(own: Linear, expected: Linear, x: Tensor) -> float:
    """How far a product of `x` is off, with and without a residual, as a share of what is allowed."""
    right = expected(x)
    residual = torch.ones_like(right)
    own.add_to(x, residual)
    errors = [float((found.float() - right.float()).norm()) for found in (own(x), residual - 1)]
    return max(errors) / float(right.float().norm()) / ALLOWED[x.dtype]


def measure(bench: Bench) -> None:
    """Times of products, one row for each shape and number of tokens; then the steps of `steps.py`."""
    shapes, dtype = ({"tiny": (40, 70)}, torch.float32) if bench.dry else (SHAPES, torch.bfloat16)
    for name, (outs, size) in shapes.items():
        if not bench.has_time(f"products of {name} in 4 bits"):
            break
        count = 1 if bench.dry else -(-MANY_BYTES * 16 // (outs * size * 9))
        weights = [random((outs, size), dtype, bench) for _ in range(count)]
        plain, narrow = (
            [kernels.linear(weight) for weight in weights]
            for kernels in (TritonKernels(bench.device), Int4Triton(bench.device))
        )
        for tokens in (1,) if bench.dry else TOKENS:
            x = random((tokens, size), dtype, bench)
            row: dict[str, Any] = {"product": name, "tokens": tokens}
            times = [bench.seconds(each(layers, x)) / count for layers in (narrow, plain)]
            row |= {"int4 us": round(times[0] * 1e6, 1), "bf16 us": round(times[1] * 1e6, 1)}
            if bench.rates.bandwidth:
                row["of copy"] = round(outs * size * 4.5 / 8 / times[0] / bench.rates.bandwidth, 3)
            bench.note("int4 products", row)
        del weights, plain, narrow
    if bench.has_time("steps of int4 weights", 30):
        kernels = Int4Triton(bench.device)
        steps.measure_model("int4 weights", kernels, AUTO, (1,) if bench.dry else BATCHES, bench)


def each(layers: list[Linear], x: Tensor) -> Callable[[], None]:
    """Multiplies `x` with each of the layers."""

    def work() -> None:
        for layer in layers:
            layer(x)

    return work
