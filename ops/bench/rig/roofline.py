"""The least time that a step can take on a machine (Williams et al. 2009, "Roofline").

It is the greater of bytes over bandwidth and operations over the matrix rate. Both rates are measured in the
run that they are compared with.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from gpu_worker.models.config import ModelConfig

READ_BYTES = 400 << 20
"""Bytes that are read to measure the bandwidth."""
MATRIX = 2048
"""Rows and columns of the matrices that are multiplied to measure the matrix rate."""
TRIES = 5
"""Times that each measurement is repeated; the median counts."""


@dataclass(frozen=True)
class Rates:
    """Rates of the machine, with as many threads as the model has."""

    read: float
    """Bytes read from memory per second."""
    matrix: float
    """Floating-point operations per second in matrix products of the model's type."""


@dataclass(frozen=True)
class Work:
    """The least that a step must read and compute."""

    weight_bytes: int
    """Bytes of weights to read."""
    kv_bytes: int
    """Bytes of keys and values to read."""
    operations: int
    """Floating-point operations: two for each multiplication."""

    def floor(self, rates: Rates) -> float:
        """The least seconds that the step takes at these rates."""
        return max((self.weight_bytes + self.kv_bytes) / rates.read, self.operations / rates.matrix)


def work(
    config: ModelConfig, itemsize: float, token_bytes: int, counts: Sequence[int], contexts: Sequence[int]
) -> Work:
    """The work of a step whose rows all sample.

    `itemsize`: bytes of a weight. `token_bytes`: bytes of a token's keys and values in all layers. `counts`:
    tokens that each row computes. `contexts`: tokens of each row's sequence after the step.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = hidden * (query + 2 * key) + query * hidden + 3 * hidden * inner
    head = config.vocab_size * hidden
    tokens = sum(counts)
    # Positions that all tokens attend to: each token attends to itself and all before it.
    attended = sum(
        count * (context - count) + count * (count + 1) // 2
        for count, context in zip(counts, contexts, strict=True)
    )
    return Work(
        weight_bytes=int((layers * layer + head) * itemsize),
        kv_bytes=token_bytes * sum(contexts),
        operations=2 * (layers * layer * tokens + head * len(counts)) + 4 * layers * query * attended,
    )


def measured(dtype: torch.dtype, threads: int) -> Rates:
    """Measure this machine's rates."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers = torch.zeros(READ_BYTES // 4)
        left = torch.randn(MATRIX, MATRIX).to(dtype)
        # Packed in oneDNN's own layout, which may be faster.
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.randn(MATRIX, MATRIX).to(dtype), MATRIX)
        read = READ_BYTES / _seconds(numbers.sum)
        plain = torch.randn(MATRIX, MATRIX).to(dtype)
        seconds = min(
            _seconds(lambda: torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")),
            _seconds(lambda: torch.nn.functional.linear(left, plain)),
        )
        return Rates(read, 2 * MATRIX**3 / seconds)
    finally:
        torch.set_num_threads(before)


def _seconds(run: Callable[[], object]) -> float:
    """Median seconds of `TRIES` runs. The least would be too good: other processes slow down steps, too."""
    run()
    tries = []
    for _ in range(TRIES):
        started = time.perf_counter()
        run()
        tries.append(time.perf_counter() - started)
    return median(tries)
