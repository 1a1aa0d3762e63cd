"""Penalties on logits, as `kernels/reference/sampling.py` defines them: a pass over tokens, one over logits.

    counts   int32 [rows, vocabulary]     the lower bits: how often each token is in the row's output
                                          bit IN_PROMPT: set if the token is in the row's prompt

The first pass reads 4 bytes for each token so far. The second pass reads 8 bytes for each logit and writes 4.
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
"""Bit of a count that is set if the token is in the prompt."""
CHUNK = 1024
"""Tokens, or logits, that one program handles."""


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
    """Grid: rows to penalize, chunks of their tokens.

    tokens int32 [slots, stride]; rows int64 [n], of the logits; slots int64 [all rows]; positions int64 [n],
    tokens of each that count; integers of the sampling state, [slots, COLUMNS]; counts int32 [all rows,
    vocabulary], zeros before. CHUNK: tokens of a program.
    """
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
    """Grid: rows to penalize, chunks of their logits.

    logits and out float32 [all rows, vocabulary]; rows int64 [n], of the logits; slots int64 [all rows];
    numbers of the sampling state, float32 [slots, COLUMNS]; counts as `count_tokens` leaves them. CHUNK:
    logits of a program.
    """
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
    """Penalized logits, float32 [all, vocabulary]. Only the rows `rows` of the result are defined.

    `rows`: int64 [rows], the rows of the logits to penalize. `slots`: int64 [all], the slot of each row of
    the logits. `positions`: int64 [rows], number of each slot's tokens that count. `longest`: no position is
    above this. All tensors are on the device.
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
        enable_fp_fusion=False,  # product and sum are rounded each, as in the reference
    )
    return out
