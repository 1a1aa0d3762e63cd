"""Embeddings: a text's hidden states, after the model's last norm, are pooled into one vector of length 1.

chunks   a b c d │ e f g        one text, computed in two steps
MEAN     ^ ^ ^ ^   ^ ^ ^        hidden states of all tokens are added to the sum of the text's slot
LAST                   ^        the hidden state of the last token alone is added

In the end the sum is scaled to length 1. So the mean need not be divided by the number of tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s, packed_float32s, packed_int32s
from gpu_worker.kernels.rows import Rows
from gpu_worker.machine.transfer import indices, to_host
from gpu_worker.models.registry import CausalLM
from proto.sampling_pb2 import Pooling
from proto.worker_pb2 import NewSlot, RowError, StepResult

NOT_FINITE = "the model's hidden states are not finite"

_KINDS = frozenset(map(int, Pooling.values()))


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings that a step completes."""

    rows: NDArray[np.intp]
    """Index in the plan of each row whose text is complete, ascending."""
    vectors: Tensor
    """float32 [rows, embedding_size]: the embedding of each row's text."""

    def on_host(self) -> "Embedded":
        """The same embeddings in main memory, once the device has done the copy."""
        return Embedded(self.rows, to_host(self.vectors))

    def add_to(self, result: StepResult) -> None:
        """Add finite embeddings to a step's result, and an error for each other one. Waits for the device."""
        vectors = self.vectors.cpu().numpy()
        good = np.isfinite(vectors).all(axis=1)
        result.embeddings.rows = packed_int32s(self.rows[good])
        result.embeddings.vectors = packed_float32s(vectors[good])
        result.errors.extend(RowError(row=int(row), message=NOT_FINITE) for row in self.rows[~good])


class SlotPooling:
    """How the text of each slot is pooled, and the sum of its hidden states so far."""

    def __init__(self, slots: int, size: int, device: torch.device) -> None:
        """`slots`: slots of the batch. `size`: numbers of a hidden state."""
        self.kinds = np.zeros(slots, np.uint8)
        """uint8 [slots]: `Pooling` of each slot."""
        self._summed = np.zeros(slots, np.int32)
        """[slots]: positions that have been computed of each slot that is pooled."""
        self._sums = torch.zeros((slots, size), device=device)

    def set(self, slot: int, new: NewSlot) -> None:
        """Begin the text of a new sequence. `pooling_fault` has found no fault in it."""
        self.kinds[slot] = new.pooling
        self._summed[slot] = 0
        if new.pooling:
            self._sums[slot] = 0

    def in_order(self, slots: Int32s, starts: Int32s, samples: Int32s) -> NDArray[np.bool_]:
        """[rows]: whether each row may be pooled.

        A row of a mean must begin where the row before it ended. A row that is pooled must not sample.
        """
        kinds = self.kinds[slots]
        whole: NDArray[np.bool_] = (kinds != Pooling.MEAN) | (starts == self._summed[slots])
        whole &= (kinds == Pooling.NO_POOLING) | (samples == 0)
        return whole

    def add(self, rows: Rows, known: Int32s, hidden: Tensor, model: CausalLM) -> Embedded | None:
        """Add the rows' hidden states [tokens, size] to their slots' sums.

        Returns the embeddings of the texts that are complete; None if no text is. `known` [slots]: number of
        tokens of each slot.
        """
        kinds, ends = self.kinds[rows.slots], rows.starts + rows.counts
        if not kinds.any():
            return None
        complete = (kinds > 0) & (ends == known[rows.slots])
        self._summed[rows.slots] = ends
        added = np.where(kinds == Pooling.MEAN, rows.counts, complete).astype(np.int64)
        if not added.any():
            return None
        # The last `added` tokens of each row.
        after = np.cumsum(rows.counts, dtype=np.int64)
        sources = np.arange(added.sum()) + np.repeat(after - np.cumsum(added), added)
        sent = self._send(np.stack((sources, np.repeat(rows.slots, added))))
        self._sums.index_add_(0, sent[1], model.normed(hidden[sent[0]]).float())
        done = np.flatnonzero(complete)
        if not len(done):
            return None
        done = done[np.argsort(rows.index[done])]
        sums = self._sums[self._send(rows.slots[done])]
        return Embedded(rows.index[done], torch.nn.functional.normalize(sums, dim=1))

    def _send(self, numbers: NDArray[np.integer]) -> Tensor:
        return indices(numbers, self._sums.device)


def pooling_fault(new: NewSlot) -> str:
    """An error message if a new sequence cannot be pooled as it asks; empty if it can."""
    if int(new.pooling) not in _KINDS:
        return f"pooling {new.pooling} is not known"
    if new.pooling and (new.candidates or new.forked_tokens):
        return "what is embedded neither forks nor is a beam"
    return ""
