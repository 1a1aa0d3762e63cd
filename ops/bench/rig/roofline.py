"""The least time that a step can take on a machine: bytes over bandwidth, operations over the matrix rate
(Williams et al. 2009, "Roofline"). Both rates are measured, in the run that they are compared with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from gpu_worker.models.config import ModelConfig

READ_BYTES = 400 << 20
MATRIX = 2048
TRIES = 5


@dataclass(frozen=True)
class Rates:
    """What the machine can do, with the threads that the model has."""

    read: float
    """Bytes a second out of memory."""
    matrix: float
    """Floating-point operations a second in products of the model's type."""


@dataclass(frozen=True)
class Work:
    """What a step has to do at least."""

    weight_bytes: int
    kv_bytes: int
    operations: int

    def floor(self, rates: Rates) -> float:
        """Seconds."""
        return max((self.weight_bytes + self.kv_bytes) / rates.read, self.operations / rates.matrix)


def work(
    config: ModelConfig, itemsize: float, token_bytes: int, counts: Sequence[int], contexts: Sequence[int]
) -> Work:
    """Of a step whose rows compute `counts` tokens and end at `contexts`; all of them sample.

    `itemsize`: bytes of a weight; `token_bytes`: of a token's keys and values in all layers. Operations: two
    for each multiplication.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = hidden * (query + 2 * key) + query * hidden + 3 * hidden * inner
    head = config.vocab_size * hidden
    tokens = sum(counts)
    # A token sees all before it, itself included: of `count` tokens the first sees least.
    seen = sum(
        count * (context - count) + count * (count + 1) // 2
        for count, context in zip(counts, contexts, strict=True)
    )
    return Work(
        weight_bytes=int((layers * layer + head) * itemsize),
        kv_bytes=token_bytes * sum(contexts),
        operations=2 * (layers * layer * tokens + head * len(counts)) + 4 * layers * query * seen,
    )


def measured(dtype: torch.dtype, threads: int) -> Rates:
    """This machine's rates."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers = torch.zeros(READ_BYTES // 4)
        left = torch.randn(MATRIX, MATRIX).to(dtype)
        # Packed as oneDNN likes it best, where it has a say.
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
    """Of the try in the middle: a step, which lasts longer, meets the same neighbours on the host."""
    run()
    tries = []
    for _ in range(TRIES):
        started = time.perf_counter()
        run()
        tries.append(time.perf_counter() - started)
    return median(tries)
