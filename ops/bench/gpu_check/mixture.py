"""Mixtures of experts, at the sizes of Qwen3 30B-A3B.

The time of few tokens is bound by reading the weights of the selected experts, of many tokens by arithmetic.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.products import Routing
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random

EXPERTS, TOP_K, SIZE, INNER = 128, 8, 2048, 768
TOKENS = (1, 8, 64, 512, 4096)
ALLOWED = 1e-2
"""Difference from the reference, relative (2-norms): its gates and ups are rounded to bfloat16."""
MANY_BYTES = 512 << 20
"""Bytes of weights that a timed turn reads: more than any cache holds, as with a model's layers."""


def check(kernels: TritonKernels, bench: Bench) -> float:
    """The difference from the reference, of routing weights and of results, as a fraction of `ALLOWED`."""
    experts, top_k, size, inner = (5, 2, 40, 24) if bench.dry else (16, 4, 1000, 300)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    own = list(_weights(experts, size, inner, dtype, bench))
    worst = 0.0
    for tokens in (3,) if bench.dry else (1, 33, 700):
        given = _routed(tokens, experts, top_k, size, dtype, bench)
        both = kernels, ReferenceKernels()
        found, right = (each.mixture(iter(own), experts)(*given) for each in both)
        worst = max(worst, float((found - right).norm() / right.norm()) / ALLOWED)
        router_logits, routing = (
            random((tokens, experts), torch.float32, bench),
            Routing(top_k, normalized=True),
        )
        (weights, selected), (right_weights, right_selected) = (
            each.route(routing)(router_logits) for each in both
        )
        bench.expect(selected.equal(right_selected), f"some of {tokens} tokens go to other experts")
        worst = max(worst, float((weights - right_weights).abs().max()) / ALLOWED)
    return worst


def measure(bench: Bench) -> None:
    """One row for each number of tokens."""
    experts, top_k, size, inner = (5, 2, 40, 24) if bench.dry else (EXPERTS, TOP_K, SIZE, INNER)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    expert_bytes = 3 * size * inner * dtype.itemsize
    if not bench.has_memory(2 * experts * expert_bytes):
        bench.found.left_out.append("mixture: its weights do not fit")
        return
    mixture = TritonMixture(_weights(experts, size, inner, dtype, bench), experts, "silu")
    for tokens in (3,) if bench.dry else TOKENS:
        if not bench.has_time(f"mixture of {tokens} tokens"):
            break
        turns = 1 if bench.dry else -(-MANY_BYTES // (min(experts, tokens * top_k) * expert_bytes))
        given = [_routed(tokens, experts, top_k, size, dtype, bench) for _ in range(turns)]
        seconds = bench.seconds(partial(_each, mixture, given)) / turns
        selected = sum(len(set(experts.flatten().tolist())) for _, _, experts in given) / turns
        moved, operations = selected * expert_bytes, 6 * size * inner * tokens * top_k
        row: dict[str, Any] = {"tokens": tokens, "experts": selected, "us": round(seconds * 1e6, 1)}
        row["of copy"] = round(moved / seconds / (bench.rates.bandwidth or 1), 3)
        row["of the matrix rate"] = round(operations / seconds / (bench.rates.matrix or 1), 3)
        bench.note("mixture", row)


def _each(mixture: TritonMixture, given: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for each in given:
        mixture(*each)


def _weights(
    experts: int, size: int, inner: int, dtype: torch.dtype, bench: Bench
) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(experts):
        yield random((2 * inner, size), dtype, bench) / size**0.5, random((size, inner), dtype, bench)


def _routed(
    tokens: int, experts: int, top_k: int, size: int, dtype: torch.dtype, bench: Bench
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, routing weights, selected experts."""
    scores = random((tokens, experts), torch.float32, bench).softmax(-1)
    routing_weights, selected_experts = scores.topk(top_k)
    return random((tokens, size), dtype, bench), routing_weights, selected_experts
