"""The positions for which a step samples tokens, and which of those tokens are kept when drafts are verified.

A row whose last k tokens are drafts samples 1 + k tokens, each as if the drafts before it were right. A draft
is right if it is the token that was sampled for its position:

    position    7    8    9    10
    token       a    b    c    d          a is known; b, c and d are drafts
    sampled     b    c    x    ·          for 8 to 11: b and c are accepted, d is rejected, x is kept instead

Kept are the accepted drafts and the first token sampled after them. Without drafts the same tokens would be
sampled, one step after the other, because a sampled token is a function of the tokens before it, the seed and
the position alone. In rejection sampling (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding") a draft is accepted with the target's probability of it; so it is here, over the seeds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class SamplePositions:
    """What a step samples, row after row in the plan's order. A row with k drafts samples 1 + k tokens."""

    rows: NDArray[np.intp]
    """[rows]: the plan's rows that sample, ascending."""
    counts: Int32s
    """[rows]: tokens that each row samples, at least 1."""
    row_slots: Int32s
    """[rows]: batch slot of each row."""
    slots: Int32s
    """[tokens]: batch slot of each sampled token."""
    positions: Int32s
    """[tokens]: position in its sequence that each sampled token is for."""
    logits_indices: NDArray[np.int64]
    """[tokens]: index, among the step's tokens, of the one whose logits each token is sampled from."""
    indices_in_row: NDArray[np.intp]
    """[tokens]: number of each token among those of its row, from 0."""

    @property
    def firsts(self) -> NDArray[np.intp]:
        """[rows]: index of the first token of each row."""
        return np.flatnonzero(self.indices_in_row == 0)

    @property
    def verify(self) -> bool:
        """Whether some row has drafts."""
        return len(self.slots) > len(self.rows)

    def kept(self, sampled: NDArray[np.integer], drafts: NDArray[np.integer]) -> Int32s:
        """Tokens that each row keeps, [rows]: all up to the first that differs from its draft, and that one.

        `sampled` [tokens]; `drafts` [tokens]: the token assumed at each position. The last entry of each row
        lies behind its drafts and does not count.
        """
        count = len(sampled)
        wrong = np.flatnonzero(sampled != drafts)
        ends = np.full(count, count, np.int32)
        ends[wrong] = wrong
        firsts = self.firsts
        lasts = firsts + self.counts - 1
        ends[lasts] = lasts
        return (np.minimum.reduceat(ends, firsts) - firsts + 1).astype(np.int32)

    def among(self, kept: Int32s) -> NDArray[np.bool_]:
        """[tokens]: which tokens are kept, if each row keeps its first `kept` [rows]."""
        held: NDArray[np.bool_] = self.indices_in_row < np.repeat(kept, self.counts)
        return held


def sample_positions(rows: Rows) -> SamplePositions:
    """The positions that the rows of a step sample tokens for."""
    sampling = np.flatnonzero(rows.samples)
    sampling = sampling[np.argsort(rows.index[sampling])]
    counts = rows.samples[sampling]
    back = np.arange(counts.sum()) - np.repeat(np.cumsum(counts), counts)  # -1: after the row's last token
    each = np.repeat(sampling, counts)
    ends = np.cumsum(rows.counts, dtype=np.int64)
    return SamplePositions(
        rows=rows.index[sampling],
        counts=counts,
        row_slots=rows.slots[sampling],
        slots=rows.slots[each],
        positions=((rows.starts + rows.counts)[each] + back + 1).astype(np.int32),
        logits_indices=ends[each] + back,
        indices_in_row=rows.samples[each] + back,
    )
