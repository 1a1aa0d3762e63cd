"""Drafts of the model's own layer for multi-token prediction (`models/predictor.py`).

The layer has pages in the model's blocks, as if it were one more layer of the model. There a token needs the
hidden state of the token before it. Within a row that is at hand. For the first token of a row it comes from
the block of the token before, which has it as a state (`kernels/recurrence.py`) of its newest token:

    row        a b c       of the model's step: a is known, b and c are two drafts after it
    propose    O a > b     before that step: from a and the state before it, which is in its block
               a'b > c     the layer's own result takes the place of what is not known yet
    follow     O a         after it: pages of all tokens, with the model's hidden states
               A b
               B c
    verified   A or B      whichever is the newest that holds: the block keeps it

So what the pages hold of a token follows from the tokens up to it, and blocks are shared, copied, moved and
named as without the layer. There is one exception: who forks before the newest token of a block begins with
the state of that token. Only guesses behind the fork depend on it, and they are verified like any other.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Cache
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.recurrence import StateCache
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.predictor import Predictor
from gpu_worker.models.sight import Seen
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.batch import Batch
from gpu_worker.step.forward import Forward


class PredictedTokens:
    """See `Drafter`."""

    def __init__(self, predictor: Predictor, caches: Sequence[Cache], kernels: Kernels) -> None:
        """`caches`: by `predictor.config.kept`, with the model's number of blocks and block size."""
        self.caches = caches
        self.forwards: Sequence[Forward] = ()
        self.predictor, self._kernels = predictor, kernels
        states = caches[-1]
        assert isinstance(states, StateCache)
        self._states = states.inputs[:, 0]
        """float32 [blocks, hidden_size]: of the newest token of each."""
        self._newest: Tensor | None = None
        """Hidden states of the step's tokens, normalized."""

    def propose(self, batch: Batch, rows: Rows, guesses: Int32s) -> None:
        """See `Drafter.propose`. The first guess follows from the row's last known token."""
        going = np.flatnonzero(guesses)
        if not len(going):
            return
        index, slots, left = rows.index[going], rows.slots[going], guesses[going]
        positions = (rows.starts + rows.counts - guesses - 1)[going]
        before = self._before(batch, slots, rows.starts[going])
        while True:
            each = np.ones_like(positions)
            step, tokens, device_slots = batch.metadata(Rows(index, slots, positions, each, each))
            hidden = self.predictor(tokens, before, self._kernels.begin(step), self.caches)
            positions = positions + 1
            logits = self.predictor.logits(hidden)
            guessed = self._kernels.sample(logits, slots, device_slots, positions, batch.sampling.state)
            batch.write_tokens(device_slots, positions, guessed.tokens)
            left = left - 1
            going = np.flatnonzero(left)
            if not len(going):
                return
            before = hidden if len(going) == len(left) else hidden[batch.send(going)]
            index, slots, left, positions = index[going], slots[going], left[going], positions[going]

    def follow(self, batch: Batch, rows: Rows, hidden: Tensor, seen: Seen | None = None) -> None:
        """See `Drafter.follow`."""
        self._newest = normed = self.predictor.normed(hidden)
        step, tokens, _ = batch.metadata(rows)
        before = self._before(batch, rows.slots, rows.starts)
        if len(normed) > len(rows.counts) or not rows.starts.all():
            firsts = batch.send(np.cumsum(rows.counts, dtype=np.int64) - rows.counts)
            begun = batch.send(rows.starts)[:, None] > 0
            before, of_rows = torch.cat((normed[:1], normed[:-1])), before
            before[firsts] = torch.where(begun, of_rows, normed[firsts])
        self.predictor(tokens, before, self._kernels.begin(step), self.caches, seen)

    def verified(self, batch: Batch, rows: Rows, samples: SamplePositions, kept: Int32s) -> None:
        """See `Drafter.verified`. Blocks get the states of their newest tokens that hold."""
        assert self._newest is not None
        held, sampling = rows.counts.copy(), np.flatnonzero(rows.samples)
        held[sampling] += kept[np.searchsorted(samples.rows, rows.index[sampling])] - rows.samples[sampling]
        size, ends = batch.limits.block_size, rows.starts + held
        firsts = rows.starts // size
        blocks = -(-ends // size) - firsts
        numbers = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks - firsts, blocks)
        lasts = np.minimum((numbers + 1) * size, np.repeat(ends, blocks)) - 1
        places = np.repeat(np.cumsum(rows.counts) - rows.counts - rows.starts, blocks) + lasts
        sent = batch.send(np.stack((np.repeat(rows.slots, blocks), numbers, places)))
        self._states[batch.tables.blocks[sent[0], sent[1]].long()] = self._newest[sent[2]].float()
        self._newest = None

    def _before(self, batch: Batch, slots: Int32s, starts: Int32s) -> Tensor:
        """Hidden states [rows, hidden_size] of the tokens before positions `starts` of slots."""
        numbers = np.maximum(starts - 1, 0) // batch.limits.block_size
        sent = batch.send(np.stack((slots, numbers)))
        return self._states[batch.tables.blocks[sent[0], sent[1]].long()].to(self.predictor.dtype)
