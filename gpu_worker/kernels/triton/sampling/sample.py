"""Sampling in Triton, as `kernels/reference/sampling.py` defines it, in few launches for a batch of any size.

    greedy       │ best of each row │
    drawing      │ best of each row │ draw │
    penalties    │ best of each row │ count tokens │ penalize │ best of each row again │ draw │
    rare filters │ as drawing, and the rows with one are drawn by the reference
    grammars     │ best of each row │ biases, only allowed tokens │ best of each row again │ and as above

The host knows which rows need which work, so nothing here waits for the device.
"""

import numpy as np
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.reference.sampling import draw
from gpu_worker.kernels.sampling import (
    DRAWS,
    PENALTIES,
    RARE_FILTERS,
    Allowed,
    Sampled,
    SamplingState,
    logprobs_of,
    pieces,
)
from gpu_worker.kernels.triton.sampling.draw import draw_into
from gpu_worker.kernels.triton.sampling.penalize import penalized
from gpu_worker.machine.transfer import indices

MOST_PARTS = 64
"""Parts in which the best of a row is looked for."""

RARE_AT_ONCE = 16
"""Rows with a rare filter that are drawn at a time: the reference sorts float64 numbers of the vocabulary."""


def sample(
    logits: Tensor,
    slots: Int32s,
    device_slots: Tensor,
    positions: Int32s,
    state: SamplingState,
    allowed: Allowed | None = None,
) -> Sampled:
    """See `Kernels.sample`."""
    raw = logits.float().contiguous()
    best, tokens = _best(raw)
    finite = best - best == 0  # infinity less itself is NaN
    flags = state.flags[slots]
    open_to = raw
    if allowed is not None:
        open_to = allowed.only(raw)
        best, tokens = _best(open_to)
    not_greedy = np.flatnonzero(flags)
    if len(not_greedy):
        rows, lengths = indices(np.stack((not_greedy, positions[not_greedy])), raw.device)
        own = open_to
        if (flags & PENALTIES).any():
            longest = int(positions[not_greedy].max())
            own = penalized(open_to, rows, device_slots, lengths, longest, state)
            best, chosen = _best(own)
            tokens = tokens.index_copy(0, rows, chosen[rows])
        if (flags & DRAWS).any():
            draw_into(tokens, own, rows, device_slots, lengths, best, state)
        for rare in pieces(np.flatnonzero(flags & RARE_FILTERS), RARE_AT_ONCE):
            few = indices(rare, raw.device)
            drawn = draw(own[few], device_slots[few], positions[rare], flags[rare], state)
            tokens = tokens.index_copy(0, few, drawn)
    return Sampled(tokens, finite, logprobs_of(raw, slots, tokens, state))


def _best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The greatest logit of each row and its token: the first of equal ones; NaN counts as the greatest.

    Of parts of rows first: a few rows as a whole would occupy a few of a GPU's processors.
    """
    rows, vocabulary = logits.shape
    parts = min(MOST_PARTS, vocabulary & -vocabulary)  # a power of two
    best, tokens = logits.view(rows * parts, -1).max(dim=-1)
    found, part = best.view(rows, parts).max(dim=-1)
    within = tokens.view(rows, parts).gather(1, part[:, None]).squeeze(1)
    return found, part * (vocabulary // parts) + within
