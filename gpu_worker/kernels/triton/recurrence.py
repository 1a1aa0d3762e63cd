"""Recurrent layers on GPUs, in PyTorch: prompts in chunks, because a token has too little to do for a launch
of its own.

Within a chunk the changes of a state depend on each other linearly, so that one triangular system has them
all (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"). With
c[i] for the product of what is kept up to token i, of each row of a state or of all rows:

    A[i, j] = update[i] (key[i] . c[i] / c[j] key[j])  for j < i
    (I + A) changes = update (value - c key S)
    results = c query S + sum of (query[i] . c[i] / c[j] key[j]) changes[j] for j <= i

In a state space a token's change is known before: update value (Dao and Gu 2024, "Transformers are SSMs",
section 6).
"""

import torch
from torch import Tensor

from gpu_worker.kernels.reference.recurrence import RecurrentStep, Tokens

CHUNK = 64
"""Tokens that are computed together."""


class ChunkedStep(RecurrentStep):
    """See `StepRecurrence`."""

    def apply_delta_rule(self, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """See `RecurrentStep`. A token's result depends a little on where chunks begin."""
        if tokens.value.shape[1] == 1:
            return super().apply_delta_rule(state, tokens)
        return _in_chunks(state, tokens, corrects=True)

    def apply_state_space(self, state: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """See `apply_delta_rule`."""
        if tokens.value.shape[1] == 1:
            return super().apply_state_space(state, tokens)
        return _in_chunks(state, tokens, corrects=False)


def _in_chunks(state: Tensor, tokens: Tokens, corrects: bool) -> tuple[Tensor, Tensor]:
    """See `apply_delta_rule`. `corrects`: changes depend on what the state has, as the delta rule's do."""
    results, count = torch.empty_like(tokens.value), tokens.value.shape[1]
    for first in range(0, count, CHUNK):
        chunk = slice(first, min(first + CHUNK, count))
        results[:, chunk], state = _chunk(state, tokens.part(chunk), corrects)
    return results, state


def _chunk(state: Tensor, tokens: Tokens, corrects: bool) -> tuple[Tensor, Tensor]:
    """See `_in_chunks`."""
    query, key, value = (each.transpose(1, 2) for each in (tokens.query, tokens.key, tokens.value))
    update = tokens.update.transpose(1, 2)[..., None]
    summed = tokens.forget.cumsum(1).transpose(1, 2)  # log c, [rows, heads, tokens, 1 or key_size]
    since = summed.exp()
    changes = update * value
    if corrects:
        system = (update * _products(key, key, summed)).tril(-1)
        missing = update * (value - (since * key) @ state)
        changes = torch.linalg.solve_triangular(system, missing, upper=False, unitriangular=True)
    results = (since * query) @ state + _products(query, key, summed) @ changes
    until = (summed[:, :, -1:] - summed).exp()
    state = state * since[:, :, -1:].transpose(2, 3) + (key * until).transpose(2, 3) @ changes
    return results.transpose(1, 2), state


def _products(left: Tensor, key: Tensor, summed: Tensor) -> Tensor:
    """left[i] . c[i] / c[j] key[j], [rows, heads, tokens, tokens]; 0 for j > i, where the quotient may be too
    large for a number."""
    if summed.shape[-1] == 1:
        between = (summed - summed.transpose(2, 3)).tril().exp()
        return (left @ key.transpose(2, 3) * between).tril()
    between = (summed[..., :, None, :] - summed[..., None, :, :]).clamp(max=0).exp()
    return torch.einsum("rhik,rhjk,rhijk->rhij", left, key, between).tril()
