"""Mixtures of experts, at the sizes of Qwen3 30B-A3B and gpt-oss 20B.

The time of few tokens is bound by reading the weights of the selected experts, of many tokens by arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import FP4, GROUP, Clamped, Expert, Mixture, Routing, ScaledWeight
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, TritonKernels
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random
from ops.bench.gpu_check.fp8_groups import fp8_in_groups


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer's mixture."""

    experts: int
    top_k: int
    size: int
    inner: int
    clamped: bool = False
    """Experts are those of gpt-oss, with biases."""

    @property
    def activation(self) -> str | Clamped:
        return Clamped(1.702, 7.0) if self.clamped else "silu"


QWEN, GPT_OSS = Shape(128, 8, 2048, 768), Shape(32, 4, 2880, 2880, clamped=True)
TINY = Shape(5, 2, 40, 24)
BITS = {"bf16": 16, "fp8": 8.25, "int4": 4.5, "fp4": 4.5}
"""Of a weight with its scales. fp8 has scales of groups of 128 inputs."""
MIXTURES = {
    "Qwen3 30B-A3B": (QWEN, ("bf16", "fp8", "int4")),
    "gpt-oss 20B": (GPT_OSS, ("fp4",)),
}
TOKENS = (1, 8, 64, 512, 4096)
ALLOWED = 1e-2
"""Difference from the reference, relative (2-norms): its gates and ups are rounded to bfloat16."""
MANY_BYTES = 512 << 20
"""Bytes of weights that a timed turn reads: more than any cache holds, as with a model's layers."""


def check(kernels: TritonKernels, bench: Bench) -> float:
    """The difference from the reference, of routing weights and of results, as a fraction of `ALLOWED`."""
    shape = TINY if bench.dry else Shape(16, 4, 1000, 300)
    odd = Shape(shape.experts, shape.top_k, shape.size, shape.inner, clamped=True)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    plain, device = ReferenceKernels(), bench.device
    worst = 0.0
    kinds: list[tuple[Shape, str, Kernels, Kernels]] = [
        (shape, "bf16", kernels, plain),
        (odd, "bf16", kernels, plain),
        (shape, "int4", Int4Triton(device), Int4Reference()),
        (odd, "fp4", KeptTriton(device), plain),
        (shape, "fp8", KeptTriton(device), CodedReference()),
    ]
    for kind, weights_of, found_by, right_by in kinds:
        own = list(_experts(kind, weights_of, dtype, bench))
        found_mixture, right_mixture = (
            each.mixture(iter(own), kind.experts, kind.activation) for each in (found_by, right_by)
        )
        for tokens in (3,) if bench.dry else (1, 33, 700):
            given = _routed(tokens, kind, dtype, bench)
            found, right = found_mixture(*given), right_mixture(*given)
            worst = max(worst, float((found - right).norm() / right.norm()) / ALLOWED)
    for tokens in (3,) if bench.dry else (1, 33, 700):
        logits = random((tokens, shape.experts), torch.float32, bench)
        routing = Routing(shape.top_k, normalized=True)
        (weights, selected), (right_weights, right_selected) = (
            each.route(routing)(logits) for each in (kernels, plain)
        )
        bench.expect(selected.equal(right_selected), f"some of {tokens} tokens go to other experts")
        worst = max(worst, float((weights - right_weights).abs().max()) / ALLOWED)
    return worst


def measure(bench: Bench) -> None:
    """One row for each mixture and number of tokens."""
    mixtures = {"tiny": (TINY, tuple(BITS))} if bench.dry else MIXTURES
    each = [(name, shape, kind) for name, (shape, kinds) in mixtures.items() for kind in kinds]
    dtype = torch.float32 if bench.dry else torch.bfloat16
    for name, shape, kind in bench.own_share(each):
        expert_bytes = 3 * shape.size * shape.inner * BITS[kind] / 8
        if not bench.has_memory(2 * shape.experts * expert_bytes + (0 if bench.dry else 4 << 30)):
            bench.found.left_out.append(f"mixture {name}, {kind}: its weights do not fit")
            continue
        if not bench.has_time(f"mixture {name}, {kind}", 10):
            break
        kernels: Kernels = (Int4Triton if kind == "int4" else KeptTriton)(bench.device)
        mixture = kernels.mixture(_experts(shape, kind, dtype, bench), shape.experts, shape.activation)
        for tokens in (3,) if bench.dry else TOKENS:
            if not bench.has_time(f"mixture {name}, {kind}, of {tokens} tokens"):
                break
            row = {"mixture": name, "weights": kind}
            bench.note("mixture", row | _measured(mixture, shape, tokens, expert_bytes, dtype, bench))


def _measured(
    mixture: Mixture,
    shape: Shape,
    tokens: int,
    expert_bytes: float,
    dtype: torch.dtype,
    bench: Bench,
) -> dict[str, Any]:
    read = min(shape.experts, tokens * shape.top_k) * expert_bytes
    turns = 1 if bench.dry else int(-(-MANY_BYTES // read))
    given = [_routed(tokens, shape, dtype, bench) for _ in range(turns)]
    seconds = bench.seconds(partial(_each, mixture, given)) / turns
    selected = sum(len(set(experts.flatten().tolist())) for _, _, experts in given) / turns
    moved, operations = selected * expert_bytes, 6 * shape.size * shape.inner * tokens * shape.top_k
    return {
        "tokens": tokens,
        "experts": selected,
        "us": round(seconds * 1e6, 1),
        "of copy": round(moved / seconds / (bench.rates.bandwidth or 1), 3),
        "of the matrix rate": round(operations / seconds / (bench.rates.matrix or 1), 3),
    }


def _each(mixture: Mixture, given: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for each in given:
        mixture(*each)


def _experts(shape: Shape, kind: str, dtype: torch.dtype, bench: Bench) -> Iterator[Expert]:
    """Random experts. `kind`: of their weights, one of `BITS`. Those of int4 are plain: a back end rounds
    them."""
    size, inner = shape.size, shape.inner
    made = {"fp4": _fp4, "fp8": fp8_in_groups}.get(kind, random_weight)
    for _ in range(shape.experts):
        up, down = made((2 * inner, size), dtype, bench), made((size, inner), dtype, bench)
        biases = (random((2 * inner,), dtype, bench), random((size,), dtype, bench)) if shape.clamped else ()
        yield Expert(up, down, *biases)


def random_weight(shape: tuple[int, int], dtype: torch.dtype, bench: Bench) -> Tensor:
    weight: Tensor = random(shape, dtype, bench) / shape[1] ** 0.5
    return weight


def _fp4(shape: tuple[int, int], dtype: torch.dtype, bench: Bench) -> Tensor:
    chance, device = bench.generator, bench.device
    numbers = FP4.to(device)[torch.randint(0, 16, shape, generator=chance, device=device)]
    groups = (shape[0], -(-shape[1] // GROUP))
    scales = torch.randint(-9, -4, groups, generator=chance, device=device).float().exp2()
    weight = numbers * scales.repeat_interleave(GROUP, 1)[:, : shape[1]]
    return ScaledWeight.of(weight.to(dtype), scales.half(), kind="fp4")


def _routed(tokens: int, shape: Shape, dtype: torch.dtype, bench: Bench) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, routing weights, selected experts."""
    scores = random((tokens, shape.experts), torch.float32, bench).softmax(-1)
    routing_weights, selected_experts = scores.topk(shape.top_k)
    return random((tokens, shape.size), dtype, bench), routing_weights, selected_experts
