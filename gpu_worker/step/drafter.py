"""What proposes drafts on the worker: a draft model (`draft_model.py`), or the model's own layer for
multi-token prediction (`predicted.py`)."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Cache
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.sight import Seen
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.batch import Batch
from gpu_worker.step.forward import Forward


class Drafter(Protocol):
    """Called three times in each step, on every rank."""

    caches: Sequence[Cache]
    """What it keeps in the model's blocks."""
    forwards: Sequence[Forward]
    """Passes of its own whose small steps may be recorded."""

    def propose(self, batch: Batch, rows: Rows, guesses: Int32s) -> None:
        """Write drafts to the batch's tokens, before the model computes the rows.

        `guesses` [rows]: drafts that are wanted for each row. They are the row's last tokens.
        """

    def follow(self, batch: Batch, rows: Rows, hidden: Tensor, seen: Seen | None = None) -> None:
        """Take in what the model has computed of the rows: hidden states [tokens, hidden_size], before the
        last norm; and what they see in images."""

    def verified(self, batch: Batch, rows: Rows, samples: SamplePositions, kept: Int32s) -> None:
        """Take in which drafts hold. `kept`: see `SamplePositions.kept`."""
