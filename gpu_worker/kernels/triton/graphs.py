"""Steps of one token a row as CUDA graphs: a step's hundreds of launches become one.

A graph replays what was recorded, on the same memory. So it is recorded for a few sizes of the batch, and a
step is put into the buffers of the next larger one:

    rows         0   1   2   3           4 recorded, 3 in the step
    tokens     │ a │ b │ c │ · │
    contexts   │ 9 │ 4 │ 17│ 0 │         a row of no context attends to nothing
    kv_entries │ 40│ 88│ 16│-1 │         and writes nothing
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gpu_worker.batch import BatchLimits
from gpu_worker.kernels.interface import StepMetadata

log = logging.getLogger(__name__)

Forward = Callable[[Tensor, StepMetadata], Tensor]
"""The decoder: hidden states [tokens, hidden_size] of token ids int32 [tokens]."""

T = TypeVar("T")


class Recorder(Protocol):
    """Makes of a computation what computes the same again, on the same memory."""

    def __call__(self, compute: Callable[[], T], /) -> Callable[[], T]: ...


LARGEST = 256
"""Rows. A step of more keeps the GPU busy for longer than its launches take."""


def sizes(max_slots: int) -> list[int]:
    """Powers of two and what lies half-way between them, so that no step is filled up by more than half."""
    powers = [1 << power for power in range(LARGEST.bit_length())]
    both = sorted({1, *powers, *(3 * power // 2 for power in powers[1:-1])})
    largest = min(max_slots, LARGEST)
    return [*(size for size in both if size < largest), largest]


class DecodeGraphs:
    """A decoder whose steps of one token a row are replayed."""

    def __init__(self, forward: Forward, limits: BatchLimits, device: torch.device, record: Recorder) -> None:
        """`record`: see `recorder`."""
        self._forward, self._record, self._longest = forward, record, limits.max_model_len
        self._sizes = sizes(limits.max_slots)
        rows = self._sizes[-1]
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._entries = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._contexts = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows, limits.max_blocks), dtype=torch.int32, device=device)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._replays: dict[int, Callable[[], Tensor]] = {}

    @torch.inference_mode()
    def prepare(self) -> None:
        """Record all sizes, the largest first: the others find room in its memory."""
        for size in reversed(self._sizes):
            compute = partial(self._forward, self._tokens[:size], self._padded(size))
            self._replays[size] = self._record(compute)
        log.info("steps of up to %d rows are replayed, in %d sizes", self._sizes[-1], len(self._sizes))

    def __call__(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        """As the decoder. What it returns is overwritten by the next call."""
        rows = len(step.query_lengths)
        if step.decodes < rows or rows > self._sizes[-1]:
            return self._forward(tokens, step)
        size = next(size for size in self._sizes if size >= rows)
        self._tokens[:rows].copy_(tokens)
        self._positions[:rows].copy_(step.positions)
        self._entries[:rows].copy_(step.kv_entries)
        self._contexts[:rows].copy_(step.contexts)
        self._tables[:rows, : step.block_tables.shape[1]].copy_(step.block_tables)
        if rows < size:
            self._entries[rows:size].fill_(-1)
            self._contexts[rows:size].zero_()
        return self._replays[size]()[:rows]

    def _padded(self, size: int) -> StepMetadata:
        """The buffers as a step: of contexts as long as they can be, by which launches are laid out."""
        return StepMetadata(
            decodes=size,
            query_lengths=(1,) * size,
            context_lengths=(self._longest,) * size,
            query_starts=self._starts[: size + 1],
            contexts=self._contexts[:size],
            block_tables=self._tables[:size],
            positions=self._positions[:size],
            kv_entries=self._entries[:size],
        )


def recorder() -> Recorder:
    """Records CUDA graphs, all of which share one pool of memory: only one is replayed at a time.

    They have a stream of their own, too, because PyTorch frees what cuBLAS works in on a stream as soon as
    one of the graphs that were recorded there is gone.
    """
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(compute: Callable[[], T]) -> Callable[[], T]:
        compute()  # compiles kernels, and lets libraries allocate what they keep
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own threads look after sums while this one records.
        with _uncollected(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            out = compute()

        def replay() -> T:
            graph.replay()
            return out

        replay()  # the first time takes longer: the graph is brought to the device
        return replay

    return record


@contextmanager
def _uncollected() -> Iterator[None]:
    """While a graph is recorded nothing may be unloaded, not another graph or kernel that nobody needs."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
