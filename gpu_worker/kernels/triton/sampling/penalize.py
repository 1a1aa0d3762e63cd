"""Penalties on logits, as `kernels/reference/sampling.py` defines them: a pass over tokens, one over logits.

    counts   int32 [rows, vocabulary]     how often each token is in the row's output, below the bit that says
                                          that it is in the prompt

The first pass reads 4 bytes for each token so far, the second reads 8 for each logit and writes 4.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.sampling import INTEGERS, NUMBERS, SamplingState

PRESENCE_PENALTY = tl.constexpr(NUMBERS["presence_penalty"])
FREQUENCY_PENALTY = tl.constexpr(NUMBERS["frequency_penalty"])
REPETITION_PENALTY = tl.constexpr(NUMBERS["repetition_penalty"])
PROMPT_LENGTH = tl.constexpr(INTEGERS["prompt_length"])

IN_PROMPT = tl.constexpr(1 << 30)
CHUNK = 1024
"""Tokens, or logits, that a program takes."""


@triton.jit(
    do_not_specialize=["stride", "vocabulary"], do_not_specialize_on_alignment=["rows", "slots", "positions"]
)
def count_tokens(
    tokens,
    rows,
    slots,
    positions,
    integers,
    counts,
    stride,
    vocabulary,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.load(rows + tl.program_id(0))
    slot = tl.load(slots + row)
    prompt_length = tl.load(integers + slot * COLUMNS + PROMPT_LENGTH)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    known = at < tl.load(positions + tl.program_id(0))
    is_output = at >= prompt_length
    places = counts + row * vocabulary + tl.load(tokens + slot * stride + at, mask=known, other=0)
    tl.atomic_or(places, IN_PROMPT, mask=known & ~is_output)
    tl.atomic_add(places, 1, mask=known & is_output)


@triton.jit(do_not_specialize=["vocabulary"], do_not_specialize_on_alignment=["rows", "slots"])
def penalize_rows(
    logits, rows, slots, numbers, counts, out, vocabulary, COLUMNS: tl.constexpr, CHUNK: tl.constexpr
):
    row = tl.load(rows + tl.program_id(0))
    own = numbers + tl.load(slots + row) * COLUMNS
    presence, frequency = tl.load(own + PRESENCE_PENALTY), tl.load(own + FREQUENCY_PENALTY)
    repetition = tl.load(own + REPETITION_PENALTY)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = at < vocabulary
    places = row * vocabulary + at
    count = tl.load(counts + places, mask=inside, other=0)
    logit = tl.load(logits + places, mask=inside, other=0.0)
    repeated = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
    logit = tl.where(count > 0, repeated, logit)
    written = count & (IN_PROMPT - 1)
    logit = logit - written.to(tl.float32) * frequency - tl.where(written > 0, presence, 0.0)
    tl.store(out + places, logit, mask=inside)


def penalized(
    logits: Tensor, rows: Tensor, slots: Tensor, positions: Tensor, longest: int, state: SamplingState
) -> Tensor:
    """Logits float32 [all, vocabulary] with the rows `rows` penalized; the result's other rows are undefined.

    `rows`: int64 [rows]. `slots`: int64 [all], the slot of each row of the logits. `positions`: int64 [rows],
    tokens of each slot that count; none of them is more than `longest`. All are on the device.
    """
    vocabulary = logits.shape[1]
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    out = torch.empty_like(logits)
    count_tokens[(len(rows), triton.cdiv(longest, CHUNK))](
        state.tokens,
        rows,
        slots,
        positions,
        state.integers,
        counts,
        state.tokens.stride(0),
        vocabulary,
        COLUMNS=state.integers.shape[1],
        CHUNK=CHUNK,
    )
    penalize_rows[(len(rows), triton.cdiv(vocabulary, CHUNK))](
        logits,
        rows,
        slots,
        state.numbers,
        counts,
        out,
        vocabulary,
        COLUMNS=state.numbers.shape[1],
        CHUNK=CHUNK,
        enable_fp_fusion=False,  # rounded twice, as by the reference
    )
    return out
