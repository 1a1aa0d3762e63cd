"""Sampling in Triton: what `gpu_worker/sampling/sampler.py` defines, in as many launches for any batch.

    greedy       │ best of each row │
    drawing      │ best of each row │ draw │
    penalties    │ best of each row │ count tokens │ penalize │ best of each row again │ draw │

Which rows ask for what is known on the host, so nothing here waits for the device.
"""

import numpy as np
import torch
import triton
from torch import Tensor

from gpu_worker.kernels.triton.sampling.draw import draw_rows
from gpu_worker.kernels.triton.sampling.penalize import penalized
from gpu_worker.sampling.sampler import Sampled, logprobs_of
from gpu_worker.sampling.sampling import DRAWS, PENALTIES
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import Int32s

TILE = 8192
"""Logits that a program has before it at a time."""


def sample(logits: Tensor, slots: Int32s, device_slots: Tensor, positions: Int32s, batch: Batch) -> Sampled:
    """See `sampler.sample`."""
    raw = logits.float().contiguous()
    best, tokens = raw.max(dim=-1)  # the first of equal maxima; NaN wins over everything
    finite = best - best == 0  # infinity less itself is no number
    flags = batch.sampling.flags[slots]
    asking = np.flatnonzero(flags)
    if len(asking):
        rows, places = batch.send(np.stack((asking, positions[asking])))
        own, scores = raw, torch.empty_like(raw)
        if (flags & PENALTIES).any():
            own = scores = penalized(raw, rows, device_slots, places, int(positions[asking].max()), batch)
            best, chosen = own.max(dim=-1)
            tokens = tokens.index_copy(0, rows, chosen[rows])
        if (flags & DRAWS).any():
            _draw(own, scores, rows, device_slots, places, best, tokens, batch)
    return Sampled(tokens, finite, logprobs_of(raw, slots, tokens, batch))


def _draw(
    logits: Tensor,
    scores: Tensor,
    rows: Tensor,
    slots: Tensor,
    positions: Tensor,
    best: Tensor,
    tokens: Tensor,
    batch: Batch,
) -> None:
    """Overwrite `tokens` of those of `rows` that draw, for `positions`. All else is of all rows."""
    numbers, integers, vocabulary = batch.sampling.number_table, batch.sampling.integer_table, logits.shape[1]
    draw_rows[(len(rows),)](
        logits,
        scores,
        rows,
        slots,
        positions,
        best,
        numbers,
        integers,
        tokens,
        vocabulary,
        NUMBERS=numbers.shape[1],
        INTEGERS=integers.shape[1],
        TILE=min(TILE, triton.next_power_of_2(vocabulary)),
        num_warps=16,
        enable_fp_fusion=False,  # rounded as by the reference
    )
