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
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, TritonKernels
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random


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
MIXTURES = {"Qwen3 30B-A3B": (QWEN, 16), "its int4": (QWEN, 4.5), "gpt-oss 20B, fp4": (GPT_OSS, 4.5)}
"""Shapes, and bits of a weight."""
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
    kinds: list[tuple[Shape, bool, Kernels, Kernels]] = [
        (shape, False, kernels, plain),
        (odd, False, kernels, plain),
        (shape, False, Int4Triton(device), Int4Reference()),
        (odd, True, KeptTriton(device), plain),
    ]
    for kind, fp4, found_by, right_by in kinds:
        own = list(_experts(kind, fp4, dtype, bench))
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
    mixtures = {"tiny": (TINY, 16.0)} if bench.dry else MIXTURES
    for name in bench.own_share(list(mixtures)):
        shape, bits = mixtures[name]
        dtype = torch.float32 if bench.dry else torch.bfloat16
        expert_bytes = 3 * shape.size * shape.inner * bits / 8
        if not bench.has_memory(2 * shape.experts * expert_bytes + (0 if bench.dry else 4 << 30)):
            bench.found.left_out.append(f"mixture {name}: its weights do not fit")
            continue
        if not bench.has_time(f"mixture {name}", 10):
            break
        fp4 = name.endswith("fp4")
        kernels: Kernels = KeptTriton(bench.device)
        if bits < 16 and not fp4:
            kernels = Int4Triton(bench.device)
        experts = _experts(shape, fp4, dtype, bench)
        mixture = kernels.mixture(experts, shape.experts, shape.activation)
        for tokens in (3,) if bench.dry else TOKENS:
            if not bench.has_time(f"mixture {name} of {tokens} tokens"):
                break
            bench.note("mixture", _measured(name, mixture, shape, tokens, expert_bytes, dtype, bench))


def _measured(
    name: str,
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
        "mixture": name,
        "tokens": tokens,
        "experts": selected,
        "us": round(seconds * 1e6, 1),
        "of copy": round(moved / seconds / (bench.rates.bandwidth or 1), 3),
        "of the matrix rate": round(operations / seconds / (bench.rates.matrix or 1), 3),
    }


def _each(mixture: Mixture, given: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for each in given:
        mixture(*each)


def _experts(shape: Shape, fp4: bool, dtype: torch.dtype, bench: Bench) -> Iterator[Expert]:
    """Random experts. `fp4`: their weights are numbers of fp4 with scales."""
    size, inner = shape.size, shape.inner
    up: Tensor
    down: Tensor
    for _ in range(shape.experts):
        if fp4:
            up, down = _fp4(2 * inner, size, dtype, bench), _fp4(size, inner, dtype, bench)
        else:
            up = random((2 * inner, size), dtype, bench) / size**0.5
            down = random((size, inner), dtype, bench)
        biases = (random((2 * inner,), dtype, bench), random((size,), dtype, bench)) if shape.clamped else ()
        yield Expert(up, down, *biases)


def _fp4(out: int, size: int, dtype: torch.dtype, bench: Bench) -> ScaledWeight:
    chance, device = bench.generator, bench.device
    numbers = FP4.to(device)[torch.randint(0, 16, (out, size), generator=chance, device=device)]
    groups = (out, -(-size // GROUP))
    scales = torch.randint(-9, -4, groups, generator=chance, device=device).float().exp2()
    weight = numbers * scales.repeat_interleave(GROUP, 1)[:, :size]
    return ScaledWeight.of(weight.to(dtype), scales.half(), kind="fp4")


def _routed(tokens: int, shape: Shape, dtype: torch.dtype, bench: Bench) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, routing weights, selected experts."""
    scores = random((tokens, shape.experts), torch.float32, bench).softmax(-1)
    routing_weights, selected_experts = scores.topk(shape.top_k)
    return random((tokens, shape.size), dtype, bench), routing_weights, selected_experts
