"""Sampling of next tokens from logits, in plain PyTorch. It defines what the other back ends sample.

A row's token depends only on its own logits, parameters, seed and position. Penalties, filters and draws are
computed only for the rows that need them; a greedy row costs an argmax. The host knows which rows need which,
so nothing here waits for the device.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.reference.noise import gumbel, keys
from gpu_worker.kernels.sampling import (
    DRAWS,
    FILTERS,
    INTEGERS,
    NUMBERS,
    PENALTIES,
    RARE_FILTERS,
    Allowed,
    Sampled,
    SamplingState,
    logprobs_of,
)
from gpu_worker.machine.transfer import indices


def sample(
    logits: Tensor,
    slots: Int32s,
    device_slots: Tensor,
    positions: Int32s,
    state: SamplingState,
    allowed: Allowed | None = None,
) -> Sampled:
    """Sample a token for each row of logits [rows, vocab_size], of any float type. `logits` does not change.

    Row i is for position positions[i] of slot slots[i]. `device_slots`: the slots again, int64 [rows] on the
    device. `state.tokens` has the slot's tokens before that position; the last of them may be drafts.
    `allowed`: biases, and the tokens that grammars and rules allow: applied before anything else.
    """
    raw = logits.float()
    best, tokens = raw.max(dim=-1)  # the first of equal maxima; NaN counts as the greatest
    finite, open_to = best.isfinite(), raw
    if allowed is not None:
        open_to = allowed.only(raw)
        tokens = open_to.argmax(dim=-1)
    flags = state.flags[slots]
    not_greedy = np.flatnonzero(flags)
    if len(not_greedy):
        rows = indices(not_greedy, raw.device)
        chosen = _choose(open_to[rows], device_slots[rows], positions[not_greedy], flags[not_greedy], state)
        tokens = tokens.index_copy(0, rows, chosen)
    return Sampled(tokens, finite, logprobs_of(raw, slots, tokens, state))


def _choose(
    logits: Tensor, device_slots: Tensor, positions: Int32s, flags: NDArray[np.uint8], state: SamplingState
) -> Tensor:
    """Tokens int64 [rows] of rows with penalties or a temperature above 0. Changes `logits`."""
    penalized = np.flatnonzero(flags & PENALTIES)
    if len(penalized):
        rows = indices(penalized, logits.device)
        logits[rows] = _penalize(logits[rows], device_slots[rows], positions[penalized], state)
    tokens = logits.argmax(dim=-1)
    drawing = np.flatnonzero(flags & DRAWS)
    if not len(drawing):
        return tokens
    rows = indices(drawing, logits.device)
    drawn = draw(logits[rows], device_slots[rows], positions[drawing], flags[drawing], state)
    return tokens.index_copy(0, rows, drawn)


def draw(
    logits: Tensor, slots: Tensor, positions: Int32s, flags: NDArray[np.uint8], state: SamplingState
) -> Tensor:
    """Tokens int64 [rows] of rows with a temperature above 0, from logits that penalties have changed."""
    numbers, integers = _parameters(state, slots)
    # The best logit is subtracted first, so that a temperature close to 0 does not overflow.
    drawn = (logits - logits.amax(dim=-1, keepdim=True)) / numbers["temperature"]
    # The position in the whole text, because a rolling context reaches the same positions again.
    counters = indices(positions, logits.device) + integers["dropped_tokens"][:, 0]
    words = keys(integers["seed"][:, 0], counters, integers["sequence_index"][:, 0])
    filtered, rare = np.flatnonzero(flags & FILTERS), np.flatnonzero(flags & RARE_FILTERS)
    if len(rare):
        few = indices(rare, logits.device)
        drawn[few] = _keep_near_best(drawn[few], numbers["top_n_sigma"][few])
    if len(filtered):
        some = indices(filtered, logits.device)
        drawn[some] = _filter(drawn[some], slots[some], state)
    if len(rare):
        typical = _keep_typical(drawn[few], numbers["typical_p"][few])
        threshold, chance = numbers["xtc_threshold"][few], numbers["xtc_probability"][few]
        excludes = (words[2][few, None] >> 8) * 2.0**-24 < chance
        left = torch.where(excludes, _exclude_top_choices(typical, threshold), typical)
        # The best token may have been left out. Where the best score is 0, noise is rounded least.
        drawn[few] = left - left.amax(dim=-1, keepdim=True)
    return (drawn + gumbel(words, drawn.shape[1])).argmax(dim=-1)


def _penalize(logits: Tensor, slots: Tensor, lengths: Int32s, state: SamplingState) -> Tensor:
    """Logits with penalties.

    Repetition (Keskar et al. 2019) counts prompt and output; frequency and presence count output alone.
    `lengths` [rows]: number of each slot's tokens that count.
    """
    numbers, integers = _parameters(state, slots)
    repetition = numbers["repetition_penalty"]
    longest = int(lengths.max())
    tokens = state.tokens[slots, :longest].long()
    positions = torch.arange(longest, device=logits.device)
    is_before = positions < indices(lengths, logits.device)[:, None]
    is_output = is_before & (positions >= integers["prompt_length"])
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, tokens, is_before.to(logits.dtype)) > 0
    counts = zeros.scatter_add(1, tokens, is_output.to(logits.dtype))
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalized = torch.where(seen, repeated, logits) - counts * numbers["frequency_penalty"]
    return penalized - (counts > 0) * numbers["presence_penalty"]


def _filter(logits: Tensor, slots: Tensor, state: SamplingState) -> Tensor:
    """Set logits to -inf that min-p, then top-k, then top-p (Holtzman et al. 2020) drop."""
    numbers, integers = _parameters(state, slots)
    top_p, top_k = numbers["top_p"], integers["top_k"]
    # The best logit is 0 here, so exp(logit) is a token's probability over that of the best token.
    logits = logits.masked_fill(logits.exp() < numbers["min_p"], -torch.inf)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill((ranks >= top_k) & (top_k > 0), -torch.inf)
    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = (before >= top_p) & (ranks > 0) & (top_p < 1.0)
    return logits.scatter(1, order, ordered.masked_fill(dropped, -torch.inf))


def _keep_near_best(logits: Tensor, sigmas: Tensor) -> Tensor:
    """Top-nσ (Tang et al. 2024): set logits to -inf that are more than `sigmas` [rows, 1] deviations below 0.

    The best logit is 0. Tokens that are not allowed do not count.
    """
    open_to, exact = logits.isfinite(), logits.double()
    count = open_to.sum(dim=-1, keepdim=True)
    mean = exact.where(open_to, 0.0).sum(dim=-1, keepdim=True) / count
    variance = (exact - mean).square().where(open_to, 0.0).sum(dim=-1, keepdim=True) / count
    return logits.masked_fill((exact < -sigmas.double() * variance.sqrt()) & (sigmas > 0), -torch.inf)


def _keep_typical(logits: Tensor, masses: Tensor) -> Tensor:
    """Locally typical sampling (Meister et al. 2023), as transformers does it. `masses`: [rows, 1]."""
    logs = logits.double().log_softmax(dim=-1)
    probabilities = logs.exp()
    entropy = -(logs * probabilities).nansum(dim=-1, keepdim=True)
    distances, order = (-logs - entropy).abs().sort(dim=-1, stable=True)
    reached = probabilities.gather(1, order).cumsum(dim=-1) < masses
    last = reached.sum(dim=-1, keepdim=True).clamp(max=logits.shape[1] - 1)
    farthest = distances.gather(1, last)
    dropped = ((-logs - entropy).abs() > farthest) & (masses < 1)
    return logits.masked_fill(dropped, -torch.inf)


def _exclude_top_choices(logits: Tensor, thresholds: Tensor) -> Tensor:
    """Set all logits to -inf of tokens at least as likely as `thresholds` [rows, 1], but the last of them."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    likely = (ordered.double().softmax(dim=-1) >= thresholds) & ordered.isfinite()
    ranks = torch.arange(logits.shape[1], device=logits.device)
    dropped = ranks < likely.sum(dim=-1, keepdim=True) - 1
    return logits.scatter(1, order, ordered.masked_fill(dropped, -torch.inf))


def _parameters(state: SamplingState, slots: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The float and the integer parameters of `slots`, int64 [rows], by name: [rows, 1] each."""
    numbers = state.numbers[slots].unsqueeze(2).unbind(1)
    integers = state.integers[slots].unsqueeze(2).unbind(1)
    return dict(zip(NUMBERS, numbers, strict=True)), dict(zip(INTEGERS, integers, strict=True))
