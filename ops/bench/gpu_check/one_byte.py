"""Checks and measures numbers of one byte, int8 and fp8: pages, matrix products, and whole steps."""

import torch

from gpu_worker.kernels.attention import Rotary
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton.formats.fp8 import is_native
from gpu_worker.kernels.triton.kernels import QuantizedTriton, TritonKernels
from ops.bench.gpu_check import steps
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import Heads, make_step, pages_for, random
from ops.bench.rig.pages import copied

TIES = 1e-3
"""Allowed share of bytes that differ: the last bit of a float decides how a tie is rounded."""

PRODUCTS = 2e-3
"""Allowed relative error (2-norms) of products: activations have ties, and sums have another order."""

BATCHES = (1, 64)

KINDS = {
    "int8 weights": (torch.int8, AUTO),
    "fp8 weights": (FP8, AUTO),
    "fp8 weights and pages": (FP8, "fp8"),
}
"""Type of weights and KV format of each kind of step."""


def written(kernels: TritonKernels, bench: Bench) -> float:
    """The share of bytes in int8 and fp8 pages that differ from the reference's, over the allowed share."""
    worst, heads = 0.0, Heads(4, 2, 16) if bench.dry else Heads(32, 8, 128)
    step = make_step([(1, 9), (3, 3)] if bench.dry else [(1, 9), (5, 64), (200, 200)], 16, bench)
    qkv = random((len(step.positions), (heads.query + 2 * heads.kv) * heads.dim), torch.float32, bench)
    angles = random((256, heads.dim // 2), torch.float32, bench) * 7
    rotary = Rotary(angles.cos(), angles.sin())
    for name in ("int8", "fp8"):
        own = pages_for(step, heads.pages, 16, kernels.kv_format(name, torch.float32), bench)
        other = copied(own)
        kernels.begin(step).rotate_and_write(qkv, rotary, own)
        ReferenceStep(step).rotate_and_write(qkv, rotary, other)
        for one, right in ((own.keys, other.keys), (own.values, other.values)):
            unlike = one.view(torch.uint8) != right.view(torch.uint8)
            worst = max(worst, float(unlike.float().mean()) / TIES)
    return worst


def products(_: TritonKernels, bench: Bench) -> float:
    """The error of products of int8 and fp8, with and without a residual, over the allowed error."""
    worst, size = 0.0, 48 if bench.dry else 4096
    for kind in (torch.int8, FP8):
        if not _multiplies(kind, bench):
            continue
        weight = random((2 * size + 8, size), torch.float32, bench)
        bias = random((2 * size + 8,), torch.float32, bench)
        own = QuantizedTriton(bench.device, kind).linear(weight, bias)
        expected = QuantizedReference(kind).linear(weight, bias)
        for tokens in (2,) if bench.dry else (1, 17, 200):
            x = random((tokens, size), torch.float32, bench)
            right = expected(x)
            added = torch.ones_like(right)
            own.add_to(x, added)
            for found in (own(x), added - 1):
                worst = max(worst, float((found - right).norm() / right.norm()) / PRODUCTS)
    return worst


def measure(bench: Bench) -> None:
    """Measure the steps of `steps.py` with weights, and pages, of one byte per number."""
    kinds = list(KINDS.items())
    for name, (weights, pages) in kinds[-1:] if bench.dry else kinds:
        if not _multiplies(weights, bench):
            bench.found.left_out.append(f"steps of {name}: this GPU does not multiply them")
        elif bench.has_time(f"steps of {name}", 30):
            kernels = QuantizedTriton(bench.device, weights)
            steps.measure_model(name, kernels, pages, (1,) if bench.dry else BATCHES, bench)


def _multiplies(numbers: torch.dtype, bench: Bench) -> bool:
    return numbers != FP8 or bench.dry or is_native(bench.device)
