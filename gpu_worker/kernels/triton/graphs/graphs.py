"""Small steps as CUDA graphs: a step's hundreds of launches become one.

A graph replays what was recorded, on the same memory. So graphs are recorded for a few sizes of a step, and a
step's own numbers are put where the graph of the next larger size reads them: see `layouts.py`.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.rows import Rows, SlotTables
from gpu_worker.kernels.triton.graphs.layouts import Layout
from gpu_worker.machine.transfer import send_to

log = logging.getLogger(__name__)

Compute = Callable[[Tensor, StepMetadata], Tensor]
"""The decoder: hidden states [tokens, hidden_size] of token ids int32 [tokens]."""

NO_ROWS = Rows(np.zeros(0, np.intp), *(np.zeros(0, np.int32) for _ in range(4)))

T = TypeVar("T")


class Recorder(Protocol):
    """Makes of a computation what computes the same again, on the same memory."""

    def __call__(self, compute: Callable[[], T], /) -> Callable[[], T]: ...


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Steps of one layout."""

    layout: Layout
    given: Tensor
    """A step's own numbers, int64, as `Layout.numbers` gives them."""
    slots: Tensor
    """The part of `given` that has the rows' slots."""
    replay: Callable[[], Tensor]
    """Computes hidden states [layout.tokens, hidden_size] of the numbers in `given`."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """See `Forward`."""
        send_to(torch.from_numpy(self.layout.numbers(rows)), self.given)
        return self.replay()[: rows.counts.sum()], self.slots[: len(rows.slots)]


class StepGraphs:
    """A decoder whose small steps are replayed."""

    def __init__(self, compute: Compute, tables: SlotTables, record: Recorder) -> None:
        """`tables`: of the batch whose rows they are. `record`: see `recorder`."""
        self._compute, self._tables, self._record = compute, tables, record
        self.graphs: list[StepGraph] = []
        """A step goes to the first that has room for it."""

    @torch.inference_mode()
    def prepare(self, layouts: Sequence[Layout]) -> None:
        """Record steps of these layouts, the largest first: the others find room in its memory."""
        recorded = {layout: self._recorded(layout) for layout in sorted(layouts, key=_tokens, reverse=True)}
        self.graphs = [recorded[layout] for layout in layouts]
        most = max(map(_tokens, layouts))
        log.info("steps of up to %d tokens are replayed, in %d sizes", most, len(layouts))

    def of(self, rows: Rows) -> StepGraph | None:
        """What replays such a step, if there is room for it in one that was recorded."""
        count, tokens = len(rows.slots), int(rows.counts.sum())
        return next((graph for graph in self.graphs if graph.layout.holds(count, tokens)), None)

    def _recorded(self, layout: Layout) -> StepGraph:
        given = torch.from_numpy(layout.numbers(NO_ROWS)).to(self._tables.tokens.device)
        return StepGraph(layout, given, layout.slots(given), self._record(partial(self._run, layout, given)))

    def _run(self, layout: Layout, given: Tensor) -> Tensor:
        return self._compute(*layout.metadata(given, self._tables))


def _tokens(layout: Layout) -> int:
    return layout.tokens


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
