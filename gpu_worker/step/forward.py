"""The forward pass of a step: from its rows' tokens to hidden states."""

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
    """Runs a model over its KV pages, kernel by kernel or by replaying a CUDA graph."""

    def __init__(self, model: CausalLM, caches: Sequence[LayerCache], kernels: Kernels) -> None:
        self._model, self._caches, self._kernels = model, caches, kernels
        self.graphs: StepGraphs | None = None
        """CUDA graphs of small steps; None if the model's steps are not replayed."""

    def __call__(self, batch: Batch, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states [tokens, hidden_size] and slots int64 [rows], both on the device.

        The next call may overwrite both. Keys and values are written to the pages.
        """
        if self.graphs is not None and (graph := self.graphs.find(rows)) is not None:
            return graph(rows)
        step, tokens, slots = batch.metadata(rows)
        return self.compute(tokens, step), slots

    def compute(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        """Hidden states [tokens, hidden_size] of the token ids `tokens`, int32 [tokens]."""
        return self._model(tokens, self._kernels.begin(step), self._caches)
