"""A model over its pages: from the tokens of a step's rows to hidden states."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, StepMetadata
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.registry import CausalLM
from gpu_worker.step.batch import Batch

if TYPE_CHECKING:
    from gpu_worker.kernels.triton.graphs.graphs import StepGraphs


class Forward:
    """Computes steps, launch by launch or replayed."""

    def __init__(self, model: CausalLM, caches: Sequence[LayerCache], kernels: Kernels) -> None:
        self._model, self._caches, self._kernels = model, caches, kernels
        self.replayed: StepGraphs | None = None
        """What computes small steps faster, if there is something."""

    def __call__(self, batch: Batch, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states [tokens, hidden_size], and slots int64 [rows], on the device: until the next call.

        Keys and values go into the pages.
        """
        if self.replayed is not None and (graph := self.replayed.of(rows)) is not None:
            return graph(rows)
        step, tokens, slots = batch.metadata(rows)
        return self.compute(tokens, step), slots

    def compute(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        """Hidden states of token ids, int32 [tokens]."""
        return self._model(tokens, self._kernels.begin(step), self._caches)
