"""Mixtures of feed-forward blocks, at the sizes of Qwen3 30B-A3B.

Few tokens are bound by the weights of the blocks that they choose, many by arithmetic.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Routing
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.kernels.triton.mixture.mixture import TritonMixture
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import random

BLOCKS, PER_TOKEN, SIZE, INNER = 128, 8, 2048, 768
TOKENS = (1, 8, 64, 512, 4096)
ALLOWED = 1e-2
"""Difference from the reference, relative (2-norms): its gates and ups are rounded to bfloat16."""
MANY_BYTES = 512 << 20
"""Of weights that a turn goes through: more than any cache, as a model's layers are."""


def check(kernels: TritonKernels, bench: Bench) -> float:
    """The difference from the reference, of shares and of results, as a share of what is allowed."""
    blocks, per_token, size, inner = (5, 2, 40, 24) if bench.dry else (16, 4, 1000, 300)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    own = list(_weights(blocks, size, inner, dtype, bench))
    worst = 0.0
    for tokens in (3,) if bench.dry else (1, 33, 700):
        given = _routed(tokens, blocks, per_token, size, dtype, bench)
        both = kernels, ReferenceKernels()
        found, right = (each.mixture(iter(own), blocks)(*given) for each in both)
        worst = max(worst, float((found - right).norm() / right.norm()) / ALLOWED)
        said, routing = random((tokens, blocks), torch.float32, bench), Routing(per_token, normalized=True)
        (shares, chosen), (wanted, best) = (each.route(routing)(said) for each in both)
        bench.expect(chosen.equal(best), f"some of {tokens} tokens go to other blocks")
        worst = max(worst, float((shares - wanted).abs().max()) / ALLOWED)
    return worst


def measure(bench: Bench) -> None:
    """One row for each number of tokens."""
    blocks, per_token, size, inner = (5, 2, 40, 24) if bench.dry else (BLOCKS, PER_TOKEN, SIZE, INNER)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    block_bytes = 3 * size * inner * dtype.itemsize
    if not bench.has_memory(2 * blocks * block_bytes):
        bench.found.left_out.append("mixture: its weights do not fit")
        return
    mixture = TritonMixture(_weights(blocks, size, inner, dtype, bench), blocks, "silu")
    for tokens in (3,) if bench.dry else TOKENS:
        if not bench.has_time(f"mixture of {tokens} tokens"):
            break
        turns = 1 if bench.dry else -(-MANY_BYTES // (min(blocks, tokens * per_token) * block_bytes))
        given = [_routed(tokens, blocks, per_token, size, dtype, bench) for _ in range(turns)]
        seconds = bench.seconds(partial(_each, mixture, given)) / turns
        chosen = sum(len(set(numbers.flatten().tolist())) for _, _, numbers in given) / turns
        moved, operations = chosen * block_bytes, 6 * size * inner * tokens * per_token
        row: dict[str, Any] = {"tokens": tokens, "blocks": chosen, "us": round(seconds * 1e6, 1)}
        row["of copy"] = round(moved / seconds / (bench.rates.bandwidth or 1), 3)
        row["of the matrix rate"] = round(operations / seconds / (bench.rates.matrix or 1), 3)
        bench.note("mixture", row)


def _each(mixture: TritonMixture, given: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for each in given:
        mixture(*each)


def _weights(
    blocks: int, size: int, inner: int, dtype: torch.dtype, bench: Bench
) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(blocks):
        yield random((2 * inner, size), dtype, bench) / size**0.5, random((size, inner), dtype, bench)


def _routed(
    tokens: int, blocks: int, per_token: int, size: int, dtype: torch.dtype, bench: Bench
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, shares, and blocks that are chosen."""
    scores = random((tokens, blocks), torch.float32, bench).softmax(-1)
    shares, chosen = scores.topk(per_token)
    return random((tokens, size), dtype, bench), shares, chosen
