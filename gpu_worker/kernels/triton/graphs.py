"""Steps of one token a row as CUDA graphs: a step's hundreds of launches become one.

A graph replays what was recorded, on the same memory. So it is recorded for a few sizes of the batch, and
what tells a step from others is put where the graph of the next larger size reads it:

    rows         0   1   2   3           4 recorded, 3 in the step
    slots      │ 5 │ 0 │ 2 │ 0 │         their tokens and blocks are in the batch already
    contexts   │ 9 │ 4 │ 17│ 0 │         a row of no context attends to nothing, and writes nothing
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpu_worker.batch import Batch, Rows
from gpu_worker.kernels.interface import StepMetadata
from gpu_worker.transfer import send_to

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
    """All up to 16, then four to each doubling: no step is filled up by more than a quarter. What fills it up
    costs little, but where there are experts: it goes to some that nobody else has chosen.
    """
    several = (step * power // 4 for power in (16, 32, 64, 128) for step in (4, 5, 6, 7))
    largest = min(max_slots, LARGEST)
    return [*(size for size in (*range(1, 16), *several) if size < largest), largest]


class DecodeGraphs:
    """A decoder whose steps of one token a row are replayed."""

    def __init__(self, forward: Forward, batch: Batch, record: Recorder) -> None:
        """`batch`: whose rows they are; its tensors stay where they are. `record`: see `recorder`."""
        self._forward, self._batch, self._record = forward, batch, record
        self._sizes = sizes(batch.limits.max_slots)
        self._starts = torch.arange(self._sizes[-1] + 1, dtype=torch.int32, device=batch.device)
        self._given: dict[int, Tensor] = {}
        self.replays: dict[int, Callable[[], Tensor]] = {}
        """By size: what computes hidden states of the rows that it was given last."""

    @torch.inference_mode()
    def prepare(self) -> None:
        """Record all sizes, the largest first: the others find room in its memory."""
        for size in reversed(self._sizes):
            given = torch.zeros((2, size), dtype=torch.int64, device=self._batch.device)
            self._given[size] = given
            self.replays[size] = self._record(partial(self._compute, given))
        log.info("steps of up to %d rows are replayed, in %d sizes", self._sizes[-1], len(self._sizes))

    def takes(self, rows: Rows) -> bool:
        """Whether they can be replayed."""
        return len(rows.counts) <= self._sizes[-1] and bool((rows.counts == 1).all())

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states [rows, hidden_size], and slots int64 [rows]: overwritten by the next call."""
        count = len(rows.slots)
        size = next(size for size in self._sizes if size >= count)
        numbers = np.zeros((2, size), np.int64)
        numbers[:, :count] = rows.slots, rows.starts + 1
        send_to(torch.from_numpy(numbers), self._given[size])
        return self.replays[size]()[:count], self._given[size][0, :count]

    def _compute(self, given: Tensor) -> Tensor:
        """`given`: slots and contexts, int64 [2, rows]."""
        slots, contexts = given
        positions = (contexts - 1).clamp(min=0)
        tokens, entries = self._batch.places(slots, positions)
        size = len(slots)
        step = StepMetadata(
            decodes=size,
            query_lengths=(1,) * size,
            context_lengths=(self._batch.limits.max_model_len,) * size,  # by which launches are laid out
            query_starts=self._starts[: size + 1],
            contexts=contexts.int(),
            block_tables=self._batch.block_tables[slots],
            positions=positions,
            kv_entries=entries.masked_fill(contexts == 0, -1),
        )
        return self._forward(tokens, step)


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
