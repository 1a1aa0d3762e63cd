"""Tokens of the batch on their way to the host, drafts included, which a step's masks depend on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.machine.transfer import indices, to_host
from gpu_worker.sampling.positions import SamplePositions


@dataclass(frozen=True, slots=True)
class TokensRead:
    """For some of a step's sampling rows, the tokens before the last position that each samples."""

    rows: list[int]
    """Indices of these rows."""
    counts: list[int]
    """Tokens of each of these rows."""
    tokens: Tensor
    """The tokens, row after row; in main memory once the device has copied them."""
    copied: torch.cuda.Event | None
    """When that is; None if they are there."""

    def lists(self) -> list[list[int]]:
        """The tokens of each row. Waits for the device."""
        if self.copied is not None:
            self.copied.synchronize()
        every, found, start = self.tokens.tolist(), [], 0
        for count in self.counts:
            found.append(every[start : start + count])
            start += count
        return found


def read_tokens(
    samples: SamplePositions, rows: Sequence[int], begins: Sequence[int], tokens: Tensor
) -> TokensRead:
    """Begin to read tokens of `rows`: those from position `begins` [rows] on.

    `tokens` [slots, max_model_len + 1]: the batch's, with this step's drafts.
    """
    which = np.array(rows, np.intp)
    slots = samples.row_slots[which]
    # The last token that is sampled has no draft in its place.
    starts = np.array(begins, np.int64)
    counts = samples.positions[samples.firsts[which]] + samples.counts[which] - 1 - starts
    positions = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    where = indices(np.stack((np.repeat(slots, counts), positions)), tokens.device)
    found, copied = to_host(tokens[where[0], where[1]]), None
    if tokens.is_cuda and counts.any():
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        copied.record()
    return TokensRead(which.tolist(), counts.tolist(), found, copied)
