"""Steps that repeat what was recorded of an earlier step: for CPUs, what CUDA graphs are for GPUs.

Steps with as many rows and tokens are computed kernel by kernel, until one of them is recorded on a tape.
Further ones put their inputs where that step had them, and play the tape:

    tokens, positions, ..  →  inputs  →  tape: layer 0 │ layer 1 │ ..  →  residual

Layers use the same memory for their intermediate results, one after the other. A model whose layers compute
with PyTorch, too, cannot be repeated. All of its steps are computed kernel by kernel.
"""

import ctypes
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.kernels.attention import Cache, StepAttention, StepMetadata
from gpu_worker.kernels.cpu.tape import Tape
from gpu_worker.kernels.rows import Rows

MOST_TOKENS = 64
"""Tokens of the largest recorded step. In larger steps, Python's time beside the kernels' is small."""
RECORDED = 5
"""Which step of a size is recorded. It takes longer by as much as some four repetitions save: what comes
seldom, such as a short prompt beside some decodes, is not worth it."""
MOST_TAPES = 256
"""Steps that are kept, each of some ten kilobytes. The oldest one goes first."""

_NEW = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default}
"""Operations that take memory and compute nothing."""

log = logging.getLogger(__name__)

AddLayer = Callable[[Tensor], None]
"""Adds the results of a layer to the residual [tokens, hidden_size], in place."""


class LayeredModel(Protocol):
    """A model whose layers communicate through the residual and the pages alone."""

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The first layer's inputs, [tokens, hidden_size]."""

    def layers(self, step: StepAttention, caches: Sequence[Cache]) -> Iterator[AddLayer]:
        """The layers in their order."""


class RecordedSteps:
    """The recorded steps of one model."""

    def __init__(
        self,
        library: ctypes.CDLL,
        model: LayeredModel,
        begin: Callable[[StepMetadata], StepAttention],
        caches: Sequence[Cache],
        metadata: Callable[[Rows], tuple[StepMetadata, Tensor, Tensor]],
        max_blocks: int,
    ) -> None:
        """`begin`: see `Kernels`. `metadata`: of a step's rows, with their tokens and slots: see
        `Batch.metadata`. `max_blocks`: blocks of the longest sequence.
        """
        self._library, self._model, self._begin, self._caches = library, model, begin, caches
        self._metadata = metadata
        self._inputs = _Inputs(max_blocks)
        self._residual: Tensor | None = None
        self._memory = _Memory()
        self._tapes: dict[tuple[int, int], Tape] = {}
        self._seen: Counter[tuple[int, int]] = Counter()
        """Steps so far of the sizes that have no tape."""
        self._repeatable = True

    def find(self, rows: Rows) -> Callable[[Rows], tuple[Tensor, Tensor]] | None:
        """What computes a step of these rows; None if it is to be computed kernel by kernel. See `Forward`.

        So is a step whose parts are timed (`pace/parts.py`): a tape has no parts.
        """
        shape = len(rows.counts), int(rows.counts.sum())
        if not self._repeatable or shape[1] > MOST_TOKENS or sys.getprofile() is not None:
            return None
        if shape not in self._tapes:
            self._seen[shape] += 1
            if self._seen[shape] < RECORDED:
                return None
        return partial(self._compute, shape)

    def _compute(self, shape: tuple[int, int], rows: Rows) -> tuple[Tensor, Tensor]:
        step, tokens, slots = self._metadata(rows)
        embedded = self._model.embed(tokens, step.positions)
        if self._residual is None:
            self._residual = embedded.new_empty(MOST_TOKENS, embedded.shape[1])
        residual = self._residual[: len(tokens)]
        residual.copy_(embedded)
        step = self._inputs.take(step)
        if shape in self._tapes:
            self._tapes[shape].play()
        else:
            self._record(shape, residual, step)
        return residual, slots

    def _record(self, shape: tuple[int, int], residual: Tensor, step: StepMetadata) -> None:
        """Compute a step, and keep its tape if nothing but kernels has computed."""
        tape, watch = Tape(self._library), _Watch(self._memory, MOST_TOKENS / len(residual))
        attention = self._begin(step)
        with watch, tape.recording():
            for add_layer in self._model.layers(attention, self._caches):
                self._memory.begin()
                add_layer(residual)
        if watch.other is not None:
            log.debug("steps are computed kernel by kernel: they use %s", watch.other)
            self._repeatable = False
            self._tapes.clear()
            return
        if len(self._tapes) == MOST_TAPES:
            self._tapes.pop(next(iter(self._tapes)))
        self._tapes[shape] = tape
        del self._seen[shape]


class _Inputs:
    """Where recorded steps have their inputs."""

    def __init__(self, max_blocks: int) -> None:
        self._starts = torch.zeros(MOST_TOKENS + 1, dtype=torch.int32)
        self._contexts = torch.zeros(MOST_TOKENS, dtype=torch.int32)
        self._tables = torch.zeros(MOST_TOKENS, max_blocks, dtype=torch.int32)
        self._positions = torch.zeros(MOST_TOKENS, dtype=torch.int64)
        self._turned = torch.zeros(MOST_TOKENS, dtype=torch.int64)
        self._entries = torch.zeros(MOST_TOKENS, dtype=torch.int64)

    def take(self, step: StepMetadata) -> StepMetadata:
        """The same step, with its tensors here."""
        blocks = step.block_tables
        tables = self._tables[: len(blocks)]
        tables[:, : blocks.shape[1]] = blocks
        return replace(
            step,
            query_starts=_put(step.query_starts, self._starts),
            contexts=_put(step.contexts, self._contexts),
            block_tables=tables,
            positions=_put(step.positions, self._positions),
            kv_entries=_put(step.kv_entries, self._entries),
            turned=None if step.turned is None else _put(step.turned, self._turned),
        )


def _put(numbers: Tensor, into: Tensor) -> Tensor:
    return into[: len(numbers)].copy_(numbers)


class _Memory:
    """Memory of a layer's intermediate results, which all layers and all recorded steps use."""

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._outgrown: list[Tensor] = []
        """Pieces that were too small for a later step. Tapes still have their addresses."""
        self._next = 0

    def begin(self) -> None:
        """Let the next layer use the memory of the layer before it."""
        self._next = 0

    def take(self, like: Tensor, reserve: float) -> Tensor:
        """Memory for an uninitialized tensor of this shape and type; `reserve`: how many times its size."""
        index, self._next = self._next, self._next + 1
        if index == len(self._pieces):
            self._pieces.append(torch.empty(0, dtype=torch.uint8))
        if self._pieces[index].nbytes < like.nbytes:
            self._outgrown.append(self._pieces[index])
            self._pieces[index] = torch.empty(math.ceil(like.nbytes * reserve), dtype=torch.uint8)
        return self._pieces[index][: like.nbytes].view(like.dtype).view(like.shape)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees PyTorch's operations within `with`, and gives new tensors memory that stays."""

    def __init__(self, memory: _Memory, reserve: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory, self._reserve = memory, reserve
        self.other: str | None = None
        """The first operation that computes, which a tape cannot repeat."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what is skipped is skipped by the compiler, which takes seconds to import

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _NEW and result.is_contiguous():
            return self._memory.take(result, self._reserve)
        if self.other is None and (func._schema.is_mutable or not _is_view(result, args)):
            self.other = str(func)
        return result


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Whether an operation has computed nothing: its result is the memory of its first argument."""
    results = result if isinstance(result, list | tuple) else [result]
    tensors = [each for each in (*results, *args[:1]) if isinstance(each, Tensor)]
    places = {each.untyped_storage().data_ptr() for each in tensors}
    return len(tensors) > len(results) and len(places) == 1
