"""Embeddings and classification: a text's hidden states, after the model's last norm, become vectors.

chunks    a b c d │ e f g       one text, computed in two steps
MEAN      ^ ^ ^ ^   ^ ^ ^       hidden states of all tokens are added to the sum of the text's slot
LAST                    ^       the hidden state of the last token alone is added
CLASSIFY                ^       logits of the labels, from the hidden state of the last token, are added
CLS       ^                     the hidden state of the first token alone is added, in an encoder
ALL       ^ ^ ^ ^   ^ ^ ^       nothing is added: each token has a vector, which its step brings

In the end the sum of hidden states is scaled to length 1. So the mean need not be divided by the number of
tokens, unless the model has layers after the pooling (`models/projection.py`). Logits are not scaled. A
classifier does nothing else, so all vectors of a worker have one size. An encoder computes whole texts, and
classifies by the first token.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from gpu_worker.arrays import Int32s, packed_float32s, packed_int32s
from gpu_worker.kernels.rows import Rows
from gpu_worker.machine.transfer import indices, to_host
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.projection import Projection
from proto.sampling_pb2 import Pooling
from proto.worker_pb2 import NewSlot, RowError, StepResult

NOT_FINITE = "the model's hidden states are not finite"

_KINDS = frozenset(map(int, Pooling.values()))


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings, or logits of labels, that a step completes."""

    rows: NDArray[np.intp]
    """Index in the plan of each row that completes vectors."""
    counts: NDArray[np.int64]
    """int64 [rows]: vectors of each."""
    vectors: Tensor
    """float32 [vectors, embedding_size] or [vectors, num_labels]: row after row."""

    def on_host(self) -> "Embedded":
        """The same vectors in main memory, once the device has done the copy."""
        return Embedded(self.rows, self.counts, to_host(self.vectors))

    def beside(self, other: "Embedded") -> "Embedded":
        """These vectors and others of the step."""
        return Embedded(
            np.concatenate((self.rows, other.rows)),
            np.concatenate((self.counts, other.counts)),
            torch.cat((self.vectors, other.vectors)),
        )

    def add_to(self, result: StepResult) -> None:
        """Add vectors that are finite to a step's result, and errors for other rows. Waits for the device."""
        vectors, owners = self.vectors.cpu().numpy(), np.repeat(self.rows, self.counts)
        bad = np.unique(owners[~np.isfinite(vectors).all(axis=1)])
        order = np.argsort(owners, kind="stable")
        order = order[~np.isin(owners[order], bad)]
        rows, counts = np.unique(owners[order], return_counts=True)
        result.embeddings.rows = packed_int32s(rows)
        result.embeddings.vectors = packed_float32s(vectors[order])
        if len(order) > len(rows):
            result.embeddings.counts = packed_int32s(counts)
        result.errors.extend(RowError(row=int(row), message=NOT_FINITE) for row in bad)


class SlotPooling:
    """How the text of each slot is pooled, and the sum of its vectors so far."""

    def __init__(
        self,
        slots: int,
        size: int,
        device: torch.device,
        labels: int = 0,
        bidirectional: bool = False,
        projection: Projection | None = None,
    ) -> None:
        """`slots`: slots of the batch. `size`: numbers of an embedding. `labels`: of a classifier; 0: the
        model is none. `bidirectional`: it is an encoder. `projection`: what makes embeddings of pooled hidden
        states; None: these are the embeddings."""
        self._labels, self._bidirectional, self._projection = labels, bidirectional, projection
        size = projection.inputs if projection else size
        self.kinds = np.zeros(slots, np.uint8)
        """uint8 [slots]: `Pooling` of each slot."""
        self._summed = np.zeros(slots, np.int32)
        """[slots]: positions that have been computed of each slot that is pooled."""
        self._sums = torch.zeros((slots, labels or size), device=device)

    def set(self, slot: int, new: NewSlot) -> None:
        """Begin the text of a new sequence. `pooling_fault` has found no fault in it."""
        by_first = self._bidirectional and new.pooling == Pooling.CLASSIFY
        self.kinds[slot] = Pooling.CLS if by_first else new.pooling
        self._summed[slot] = 0
        if new.pooling:
            self._sums[slot] = 0

    def in_order(
        self, slots: Int32s, starts: Int32s, counts: Int32s, known: Int32s, samples: Int32s
    ) -> NDArray[np.bool_]:
        """[rows]: whether each row may be pooled.

        A row of a mean, or of vectors of all tokens, must begin where the row before it ended. A row of an
        encoder must have all of its slot's `known` tokens. A row that is pooled must not sample.
        """
        kinds = self.kinds[slots]
        every = (kinds == Pooling.MEAN) | (kinds == Pooling.ALL)
        whole: NDArray[np.bool_] = ~every | (starts == self._summed[slots])
        if self._bidirectional:
            whole = (starts == 0) & (counts == known)
        whole &= (kinds == Pooling.NO_POOLING) | (samples == 0)
        return whole

    def add(self, rows: Rows, known: Int32s, hidden: Tensor, model: CausalLM) -> Embedded | None:
        """Add what the rows' hidden states [tokens, size] give to their slots' sums.

        Returns the vectors that are complete; None if none is. `known` [slots]: tokens of each slot.
        """
        kinds, ends = self.kinds[rows.slots], rows.starts + rows.counts
        if not kinds.any():
            return None
        self._summed[rows.slots] = ends
        each = kinds == Pooling.ALL
        complete = (kinds > 0) & ~each & (ends == known[rows.slots])
        pooled = self._pooled(rows, kinds, complete, hidden, model)
        if not each.any():
            return pooled
        found = self._of_each(rows, each, hidden, model)
        return found if pooled is None else pooled.beside(found)

    def _pooled(
        self,
        rows: Rows,
        kinds: NDArray[np.uint8],
        complete: NDArray[np.bool_],
        hidden: Tensor,
        model: CausalLM,
    ) -> Embedded | None:
        """Add to the sums of slots. The vectors of texts that are complete; None if none is."""
        added = np.where(kinds == Pooling.MEAN, rows.counts, complete).astype(np.int64)
        if not added.any():
            return None
        # The last `added` tokens of each row, or its first token.
        after = np.cumsum(rows.counts, dtype=np.int64)
        if self._bidirectional:
            after -= np.where(kinds == Pooling.CLS, rows.counts - 1, 0)
        sent = self._send(np.stack((_places(after, added), np.repeat(rows.slots, added))))
        of_tokens = model.scores if self._labels else model.normed
        self._sums.index_add_(0, sent[1], of_tokens(hidden[sent[0]]).float())
        done = np.flatnonzero(complete)
        if not len(done):
            return None
        vectors = self._sums[self._send(rows.slots[done])]
        if not self._labels:
            if self._projection is not None:  # a mean is one now, and no sum
                means = kinds[done] == Pooling.MEAN
                ends = rows.starts[done] + rows.counts[done]
                vectors /= self._send(np.where(means, ends, 1).astype(np.int64))[:, None]
            vectors = self._embeddings(vectors)
        return Embedded(rows.index[done], np.ones(len(done), np.int64), vectors)

    def _of_each(self, rows: Rows, each: NDArray[np.bool_], hidden: Tensor, model: CausalLM) -> Embedded:
        """Vectors of all tokens of the rows `each` [rows]."""
        counts = np.where(each, rows.counts, 0).astype(np.int64)
        places = self._send(_places(np.cumsum(rows.counts, dtype=np.int64), counts))
        vectors = self._embeddings(model.normed(hidden[places]).float())
        return Embedded(rows.index[each], counts[each], vectors)

    def _embeddings(self, pooled: Tensor) -> Tensor:
        """Embeddings, float32 [vectors, size], of hidden states or means of some, float32."""
        return normalize(pooled if self._projection is None else self._projection(pooled), dim=1)

    def _send(self, numbers: NDArray[np.integer]) -> Tensor:
        return indices(numbers, self._sums.device)


def _places(ends: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of several rows, the places of the last `counts` tokens before each of `ends`, row after row."""
    places: NDArray[np.int64] = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
    return places


def pooling_fault(new: NewSlot, labels: int, bidirectional: bool = False, headless: bool = False) -> str:
    """An error message if a new sequence cannot be pooled as it asks; empty if it can. `labels`,
    `bidirectional`: as above. `headless`: the model has no head."""
    if int(new.pooling) not in _KINDS:
        return f"pooling {new.pooling} is not known"
    if new.pooling and (new.candidates or new.forked_tokens):
        return "what is embedded neither forks nor is a beam"
    if labels and (new.pooling != Pooling.CLASSIFY or new.sampling.HasField("prompt_logprobs")):
        return "the model classifies texts, and can do nothing else"
    if not labels and new.pooling == Pooling.CLASSIFY:
        return "the model has no classification head"
    if (bidirectional or headless) and (not new.pooling or new.sampling.HasField("prompt_logprobs")):
        return "the model embeds texts, and can do nothing else"
    if not bidirectional and new.pooling == Pooling.CLS:
        return "the first token of the model sees no other token"
    return ""
