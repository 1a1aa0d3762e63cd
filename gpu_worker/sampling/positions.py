"""Which tokens a step samples, where they go, and which of them hold.

A row of 1 + k tokens whose last k are drafts samples 1 + k tokens, each as if the drafts before it were the
truth. So they are, as long as each draft is the very token that was sampled in its place:

    position    7    8    9    10
    token       a    b    c    d          a is known; b, c and d are drafts
    sampled     b    c    x    ·          for 8 to 11: b and c hold, x is the target's own, d was wrong

Every draft that holds is a token gained, and so is the first one sampled after them. What is kept is what
would have been sampled without drafts, one row after the other, because a sampled token is a function of
the tokens before it, the seed and the position alone. In rejection sampling (Leviathan et al. 2023, "Fast
Inference from Transformers via Speculative Decoding") a given draft is accepted with the target's
probability of it; so it is here, over the seeds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class Samples:
    """The sampled tokens of a step, row after row in the plan's order."""

    rows: NDArray[np.intp]
    """Rows of the plan that sample, ascending."""
    counts: Int32s
    """How many tokens each of them samples, at least 1."""
    row_slots: Int32s
    """Their slots."""
    slots: Int32s
    """The slot of each token."""
    positions: Int32s
    """What position in its sequence each token is for."""
    places: NDArray[np.int64]
    """Which of the step's tokens each comes after."""

    numbers: NDArray[np.intp]
    """Which of its row's tokens each is, from 0."""

    @property
    def firsts(self) -> NDArray[np.intp]:
        """Where each row's tokens begin."""
        return np.flatnonzero(self.numbers == 0)

    @property
    def verify(self) -> bool:
        """Some rows have drafts."""
        return len(self.slots) > len(self.rows)

    def kept(self, sampled: NDArray[np.integer], drafts: NDArray[np.integer]) -> Int32s:
        """How many tokens each row keeps: those up to the first that is not the draft in its place.

        `drafts`: the token that was assumed at each position; a row's last entry is past its drafts.
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
        """Which tokens are kept, if each row keeps its first `kept`."""
        held: NDArray[np.bool_] = self.numbers < np.repeat(kept, self.counts)
        return held


def samples_of(rows: Rows) -> Samples:
    """What the rows of a step sample."""
    sampling = np.flatnonzero(rows.samples)
    sampling = sampling[np.argsort(rows.index[sampling])]
    counts = rows.samples[sampling]
    back = np.arange(counts.sum()) - np.repeat(np.cumsum(counts), counts)  # -1: after the row's last token
    each = np.repeat(sampling, counts)
    ends = np.cumsum(rows.counts, dtype=np.int64)
    return Samples(
        rows=rows.index[sampling],
        counts=counts,
        row_slots=rows.slots[sampling],
        slots=rows.slots[each],
        positions=((rows.starts + rows.counts)[each] + back + 1).astype(np.int32),
        places=ends[each] + back,
        numbers=rows.samples[each] + back,
    )
