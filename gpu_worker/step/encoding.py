"""The forward pass of an encoder's step: each row is a whole text, of which nothing is kept."""

import numpy as np
from torch import Tensor

from gpu_worker.kernels.rows import Rows
from gpu_worker.models.encoder import Encoder
from gpu_worker.models.sight import Seen
from gpu_worker.step.batch import Batch


class Encoding:
    """Runs an encoder; see `Forward`, in whose place it is."""

    def __init__(self, model: Encoder) -> None:
        self._model = model

    def __call__(self, batch: Batch, rows: Rows, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states [tokens, hidden_size] and slots int64 [rows], both on the device. An encoder sees
        nothing."""
        slots, positions, _ = rows.tokens()
        second = batch.second_segments[slots]
        types = (second > 0) & (positions >= second)
        sent = batch.send(np.stack((slots, positions, types)).astype(np.int64))
        tokens = batch.tables.tokens[sent[0], sent[1]].long()
        hidden = self._model.encode(tokens, sent[1], sent[2], rows.counts.tolist())
        return hidden, batch.send(rows.slots)
