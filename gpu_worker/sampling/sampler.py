"""The choice of next tokens from logits.

A row's token depends on its own logits, parameters, seed and position alone. Each kind of work is
done for those rows that ask for it; a greedy row costs an argmax. What the rows ask for is known on
the host, so nothing here waits for the device.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.machine.transfer import to_device, to_host
from gpu_worker.sampling.noise import gumbel
from gpu_worker.sampling.philox import keys
from gpu_worker.sampling.sampling import DRAWS, FILTERS, PENALTIES
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import Int32s


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities under the model itself, before temperature, penalties and filters."""

    rows: NDArray[np.intp]
    """Rows that want them."""
    top_counts: Int32s
    """How many alternatives each of these rows wants."""
    chosen: Tensor
    """float32 [len(rows)]: of the tokens that were chosen."""
    top_tokens: Tensor
    """int64 [len(rows), max(top_counts)]: the alternatives, best first."""
    top: Tensor
    """float32, of the same shape."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may follow the rows of beams, of which none is kept."""

    rows: NDArray[np.intp]
    """Rows of beams."""
    counts: Int32s
    """How many each of these rows wants."""
    tokens: Tensor
    """int64 [len(rows), max(counts)]: the most likely ones, best first."""
    logprobs: Tensor
    """float32, of the same shape."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen, on the device at first."""

    tokens: Tensor
    """int64 [rows]."""
    finite: Tensor
    """bool [rows]: False where the model gave no usable logits."""
    logprobs: Logprobs | None
    """None if no row wants any."""
    candidates: Candidates | None = None
    """None if no row is of a beam."""

    def on_host(self) -> "Sampled":
        """The same in main memory, once the device has come to the copies."""
        found = self.logprobs
        if found is not None:
            chosen, top_tokens, top = map(to_host, (found.chosen, found.top_tokens, found.top))
            found = Logprobs(found.rows, found.top_counts, chosen, top_tokens, top)
        may_follow = self.candidates
        if may_follow is not None:
            tokens, logprobs = to_host(may_follow.tokens), to_host(may_follow.logprobs)
            may_follow = Candidates(may_follow.rows, may_follow.counts, tokens, logprobs)
        return Sampled(to_host(self.tokens), to_host(self.finite), found, may_follow)


def sample(logits: Tensor, slots: Int32s, device_slots: Tensor, positions: Int32s, batch: Batch) -> Sampled:
    """Choose a token for each row of logits [rows, vocab_size]: for position positions[i] of slot slots[i].

    `device_slots`: the slots again, int64 on the device. The slot's tokens before that position are in
    `batch.tokens`, known or not: they may be drafts.
    """
    raw = logits.float()
    best, tokens = raw.max(dim=-1)  # the first of equal maxima; NaN wins over everything
    flags = batch.sampling.flags[slots]
    asking = np.flatnonzero(flags)
    if len(asking):
        rows = _index(asking, raw.device)
        chosen = _choose(raw[rows], device_slots[rows], positions[asking], flags[asking], batch)
        tokens = tokens.index_copy(0, rows, chosen)
    return Sampled(tokens, best.isfinite(), logprobs_of(raw, slots, tokens, batch))


def logprobs_of(raw: Tensor, slots: Int32s, tokens: Tensor, batch: Batch) -> Logprobs | None:
    """What the rows of raw logits [rows, vocab_size], of slots `slots`, want beside their tokens [rows]."""
    wanted = np.flatnonzero(batch.sampling.logprobs[slots] >= 0)
    if not len(wanted):
        return None
    counts = batch.sampling.logprobs[slots[wanted]]
    rows = _index(wanted, raw.device)
    logprobs = raw[rows].log_softmax(dim=-1)
    top = logprobs.topk(int(counts.max()), dim=-1)
    chosen = logprobs.gather(1, tokens[rows, None])[:, 0]
    return Logprobs(wanted, counts.astype(np.int32), chosen, top.indices, top.values)


def candidates_of(raw: Tensor, slots: Int32s, batch: Batch) -> Candidates | None:
    """The best tokens for those rows of raw logits [rows, vocab_size], of slots `slots`, of beams."""
    beams = np.flatnonzero(batch.sampling.candidates[slots])
    if not len(beams):
        return None
    counts = batch.sampling.candidates[slots[beams]]
    logprobs = raw[_index(beams, raw.device)].float().log_softmax(dim=-1)
    top = logprobs.topk(int(counts.max()), dim=-1)
    return Candidates(beams, counts, top.indices, top.values)


def _choose(
    logits: Tensor, device_slots: Tensor, positions: Int32s, flags: NDArray[np.uint8], batch: Batch
) -> Tensor:
    """Tokens int64 [rows] of rows that ask for more than the most likely one. Changes `logits`."""
    penalized = np.flatnonzero(flags & PENALTIES)
    if len(penalized):
        rows = _index(penalized, logits.device)
        logits[rows] = _penalize(logits[rows], device_slots[rows], positions[penalized], batch)
    tokens = logits.argmax(dim=-1)
    drawing = np.flatnonzero(flags & DRAWS)
    if not len(drawing):
        return tokens
    rows = _index(drawing, logits.device)
    temperature, *_ = batch.sampling.numbers(device_slots[rows])
    # Against the best one: a temperature close to 0 must not overflow.
    drawn = logits[rows]
    drawn = (drawn - drawn.amax(dim=-1, keepdim=True)) / temperature
    filtered = np.flatnonzero(flags[drawing] & FILTERS)
    if len(filtered):
        some = _index(filtered, logits.device)
        drawn[some] = _filter(drawn[some], device_slots[rows[some]], batch)
    _, seed, sequence, _, dropped = batch.sampling.integers(device_slots[rows])
    # The place in the whole text: a context that rolls comes to the same positions again.
    counters = _index(positions[drawing], logits.device) + dropped[:, 0]
    noise = gumbel(keys(seed[:, 0], counters, sequence[:, 0]), drawn.shape[1])
    return tokens.index_copy(0, rows, (drawn + noise).argmax(dim=-1))


def _penalize(logits: Tensor, slots: Tensor, lengths: Int32s, batch: Batch) -> Tensor:
    """Repetition (Keskar et al. 2019) on prompt and output, then frequency and presence on output.

    `lengths`: how many of each slot's tokens count.
    """
    *_, presence, frequency, repetition = batch.sampling.numbers(slots)
    *_, prompt_length, _ = batch.sampling.integers(slots)
    longest = int(lengths.max())
    tokens = batch.tokens[slots, :longest].long()
    places = torch.arange(longest, device=logits.device)
    is_before = places < _index(lengths, logits.device)[:, None]
    is_output = is_before & (places >= prompt_length)
    zeros = torch.zeros_like(logits)
    seen = zeros.scatter_add(1, tokens, is_before.to(logits.dtype)) > 0
    counts = zeros.scatter_add(1, tokens, is_output.to(logits.dtype))
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen, repeated, logits) - counts * frequency - (counts > 0) * presence


def _filter(logits: Tensor, slots: Tensor, batch: Batch) -> Tensor:
    """Set to -inf what min-p, then top-k, then top-p (Holtzman et al. 2020) leave out."""
    _, top_p, min_p, *_ = batch.sampling.numbers(slots)
    top_k, *_ = batch.sampling.integers(slots)
    # The best logit is 0 here, so its ratio to another's probability is that one's exponential.
    logits = logits.masked_fill(logits.exp() < min_p, -torch.inf)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill((ranks >= top_k) & (top_k > 0), -torch.inf)
    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = (before >= top_p) & (ranks > 0) & (top_p < 1.0)
    return logits.scatter(1, order, ordered.masked_fill(dropped, -torch.inf))


def _index(rows: NDArray[np.integer], device: torch.device) -> Tensor:
    """Indices on the device, int64."""
    return to_device(torch.from_numpy(rows.astype(np.int64)), device)
