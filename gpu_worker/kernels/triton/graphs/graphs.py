"""CUDA graphs of small steps: one launch replaces the hundreds of kernel launches of a step.

A graph repeats the recorded kernels on the same memory. So graphs are recorded for some sizes of a step. A
step takes the graph of the next larger size, and its inputs are copied to where that graph reads them: see
`layouts.py`.
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
"""The forward pass: from token ids int32 [tokens] to hidden states [tokens, hidden_size]."""

NO_ROWS = Rows(np.zeros(0, np.intp), *(np.zeros(0, np.int32) for _ in range(4)))

T = TypeVar("T")


class Recorder(Protocol):
    """Records a computation. Returns a function that repeats it on the same memory."""

    def __call__(self, compute: Callable[[], T], /) -> Callable[[], T]: ...


@dataclass(frozen=True, slots=True)
class StepGraph:
    """The recorded steps of one layout."""

    layout: Layout
    """The size of the recorded step, and where it reads its inputs."""
    inputs: Tensor
    """int64: the inputs of a step, as `Layout.inputs` packs them. The graph reads this tensor."""
    slots: Tensor
    """int64: the part of `inputs` that has the rows' slots."""
    replay: Callable[[], Tensor]
    """Computes hidden states [layout.tokens, hidden_size] from `inputs`."""

    def __call__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Compute a step: hidden states [tokens, hidden_size], and slots int64 [rows]. See `Forward`."""
        send_to(torch.from_numpy(self.layout.inputs(rows)), self.inputs)
        return self.replay()[: rows.counts.sum()], self.slots[: len(rows.slots)]


class StepGraphs:
    """The CUDA graphs of one model."""

    def __init__(self, compute: Compute, tables: SlotTables, record: Recorder) -> None:
        """`compute`: the model's forward pass. `tables`: the batch's tables. `record`: see `recorder`."""
        self._compute, self._tables, self._record = compute, tables, record
        self.graphs: list[StepGraph] = []
        """Graphs in the order of search: a step takes the first one into which it fits."""

    @torch.inference_mode()
    def prepare(self, layouts: Sequence[Layout]) -> None:
        """Record steps of these layouts, the largest first, so that the others can reuse its memory."""
        recorded = {layout: self._recorded(layout) for layout in sorted(layouts, key=_tokens, reverse=True)}
        self.graphs = [recorded[layout] for layout in layouts]
        most = max(map(_tokens, layouts))
        log.info("steps of up to %d tokens are replayed, in %d sizes", most, len(layouts))

    def find(self, rows: Rows) -> StepGraph | None:
        """The graph for a step of these rows; None if the step fits into no graph."""
        count, tokens = len(rows.slots), int(rows.counts.sum())
        return next((graph for graph in self.graphs if graph.layout.fits(count, tokens)), None)

    def _recorded(self, layout: Layout) -> StepGraph:
        inputs = torch.from_numpy(layout.inputs(NO_ROWS)).to(self._tables.tokens.device)
        return StepGraph(
            layout, inputs, layout.slots(inputs), self._record(partial(self._run, layout, inputs))
        )

    def _run(self, layout: Layout, inputs: Tensor) -> Tensor:
        return self._compute(*layout.metadata(inputs, self._tables))


def _tokens(layout: Layout) -> int:
    return layout.tokens


def _alone() -> None:
    """No other rank counts replays."""


def recorder(count_replay: Callable[[], None] = _alone) -> Recorder:
    """A recorder of CUDA graphs. `count_replay`: is called after each replay.

    All of its graphs share one pool of memory: only one is replayed at a time.
    The graphs are recorded on a stream of their own. PyTorch frees cuBLAS's workspace of a stream as soon as
    one of the graphs that were recorded on it is freed.
    """
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def record(compute: Callable[[], T]) -> Callable[[], T]:
        compute()  # compiles kernels, and lets libraries allocate their workspaces
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's own threads may call CUDA while this thread records.
        with _uncollected(), torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            out = compute()

        def replay() -> T:
            graph.replay()
            count_replay()
            return out

        replay()  # the first replay takes longer: it loads the graph onto the device
        return replay

    return record


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switch the garbage collector off: while a graph is recorded no other graph or kernel may be freed."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
