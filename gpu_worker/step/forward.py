"""The forward pass of a step: from its rows' tokens to hidden states."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from gpu_worker.kernels.attention import Cache, StepMetadata
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.sight import Seen
from gpu_worker.step.batch import Batch
from gpu_worker.step.drafted_states import DraftedStates
from gpu_worker.step.seen_together import Begin, seen_together

if TYPE_CHECKING:
    from gpu_worker.kernels.cpu.recorded_steps import RecordedSteps
    from gpu_worker.kernels.triton.graphs.graphs import StepGraphs


class Forward:
    """Runs a model over its KV pages, kernel by kernel or by repeating a recorded step."""

    def __init__(self, model: CausalLM, caches: Sequence[Cache], kernels: Kernels) -> None:
        self.model, self.caches, self._kernels = model, caches, kernels
        self._adapters = model.adapters if isinstance(model, Decoder) else None
        self.recorded: StepGraphs | RecordedSteps | None = None
        """Small steps that can be repeated; None if all are computed kernel by kernel."""
        self.drafted: DraftedStates | None = None
        """States that the newest step has not written, because its rows have drafts."""

    def __call__(self, batch: Batch, rows: Rows, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states [tokens, hidden_size] and slots int64 [rows], both on the device.

        The next call may overwrite both. Keys and values are written to the pages. `seen`: what tokens of the
        step see in images.
        """
        recorded = self.recorded if seen is None else None
        if self.in_grid and batch.images is not None and batch.images.are_ahead(rows):
            recorded = None  # graphs shift all tokens of a slot alike
        if self._adapters is None or not (adapters := batch.adapters[rows.slots]).any():
            return self._run(batch, rows, recorded, seen)
        with self._adapters.step.of(np.repeat(adapters, rows.counts), batch.device):
            return self._run(batch, rows, None, seen)

    def _run(
        self,
        batch: Batch,
        rows: Rows,
        recorded: "StepGraphs | RecordedSteps | None",
        seen: Seen | None,
    ) -> tuple[Tensor, Tensor]:
        begin: Begin = self._kernels.begin
        if self.model.config.recurrent and rows.drafted.any():
            self.drafted = DraftedStates(batch, rows, begin)
            begin, recorded = self.drafted.begin, None
        if seen is not None:
            if seen.ahead is not None:
                assert batch.images is not None
                begin = seen_together(begin, seen, batch.images.together == "in windows")
            step, tokens, slots = self.metadata(batch, rows)
            return self.model(tokens, begin(step), self.caches, seen), slots
        if recorded is not None and (repeat := recorded.find(rows)) is not None:
            return repeat(rows)
        step, tokens, slots = self.metadata(batch, rows)
        return self.model(tokens, begin(step), self.caches), slots

    def metadata(self, batch: Batch, rows: Rows) -> tuple[StepMetadata, Tensor, Tensor]:
        """See `Batch.metadata`. A draft model does not see, and knows of no shifts behind images."""
        step, tokens, slots = batch.metadata(rows)
        if step.turned is not None and not self.in_grid:
            step = replace(step, turned=None)
        return step, tokens, slots

    @property
    def in_grid(self) -> bool:
        """Whether the model sees images whose tokens lie in a grid."""
        return isinstance(self.model, Decoder) and self.model.in_grid

    def compute(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        """Hidden states [tokens, hidden_size] of the token ids `tokens`, int32 [tokens]."""
        return self.model(tokens, self._kernels.begin(step), self.caches)
