"""What sampling reads and gives, and what all back ends compute alike of it.

Each back end chooses tokens by itself, see `Kernels.sample`; `kernels/reference/sampling.py` defines which.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.arrays import Int32s
from gpu_worker.machine.transfer import indices, to_device, to_host
from proto.sampling import STAGED

DRAWS = 1
"""Flag of a slot whose temperature is above 0."""
FILTERS = 2
"""Flag of a slot that draws with a filter, such as top_p."""
PENALTIES = 4
"""Flag of a slot with a penalty."""
RARE_FILTERS = 8
"""Flag of a slot that draws with one of `RARE`."""

RARE = frozenset(("top_n_sigma", "typical_p", "xtc_probability"))
"""Filters that few ask for. On a GPU they have no kernels of their own."""


MASKED_AT_ONCE = 32
"""Rows whose masks are taken apart at a time: a number of 4 bytes for each bit."""


def _columns(*names: str) -> Mapping[str, int]:
    return {name: column for column, name in enumerate(names)}


NUMBERS = _columns(*(each.name for each in STAGED if not each.whole))
"""Columns of `SamplingState.numbers` by name: the floats that `proto/sampling.proto` declares."""
INTEGERS = _columns(
    *(each.name for each in STAGED if each.whole), "seed", "sequence_index", "prompt_length", "dropped_tokens"
)
"""Columns of `SamplingState.integers` by name: the declared integers, and numbers of the sequence."""


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What sampling reads of every slot. Plans change its contents; tensors and arrays stay."""

    tokens: Tensor
    """int32 [slots, max_model_len + 1] on the device: tokens of each slot, drafts behind the known ones."""
    numbers: Tensor
    """float32 [slots, len(NUMBERS)] on the device."""
    integers: Tensor
    """int64 [slots, len(INTEGERS)] on the device."""
    flags: NDArray[np.uint8]
    """[slots] on the host: DRAWS | FILTERS | PENALTIES | RARE_FILTERS."""
    logprobs: Int32s
    """[slots] on the host: alternatives wanted with each token; -1: no log probabilities at all."""


@dataclass(frozen=True, slots=True)
class Biases:
    """What is added to the logits of some tokens."""

    starts: Int32s
    """[rows + 1] on the host: row i of the logits has the entries from starts[i] on, before starts[i + 1]."""
    tokens: Int32s
    """[entries] on the host: the tokens; within a row no token comes twice."""
    values: NDArray[np.float32]
    """[entries] on the host: what is added to the logit of each."""

    def add_to(self, logits: Tensor) -> None:
        """Add them to the logits float32 [rows, vocab_size]."""
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        where = indices(np.stack((rows, self.tokens)), logits.device)
        logits[where[0], where[1]] += to_device(torch.from_numpy(self.values), logits.device)

    def part(self, begin: int, end: int) -> "Biases":
        """Those of the rows from `begin` on, before `end`."""
        starts = self.starts[begin : end + 1]
        entries = slice(starts[0], starts[-1])
        return Biases(starts - starts[0], self.tokens[entries], self.values[entries])


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that grammars and rules allow in some rows of a step's logits, and their biases."""

    masks: Int32s
    """[rows] on the host: which row of `words` a row of the logits has; -1: all tokens are allowed."""
    words: Int32s
    """[masks, words] on the host, contiguous: bit t % 32 of word t // 32 says whether token t is allowed.
    There may be more bits than tokens."""
    biases: Biases | None = None
    """None if no row has any."""

    def only(self, raw: Tensor) -> Tensor:
        """A copy of the logits float32 [rows, vocab_size]: with biases, -inf for tokens not allowed."""
        device, only = raw.device, raw.clone()
        if self.biases is not None:
            self.biases.add_to(only)
        for rows in pieces(np.flatnonzero(self.masks >= 0), MASKED_AT_ONCE):
            words = to_device(torch.from_numpy(self.words[self.masks[rows]]), device)
            bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device)) & 1
            where = indices(rows, device)
            own = only[where]
            only[where] = own.masked_fill(bits.flatten(1)[:, : own.shape[1]] == 0, -torch.inf)
        return only

    def part(self, begin: int, end: int) -> "Allowed":
        """Of the rows from `begin` on, before `end`."""
        biases = None if self.biases is None else self.biases.part(begin, end)
        return Allowed(self.masks[begin:end], self.words, biases)


def pieces(rows: NDArray[np.intp], most: int) -> list[NDArray[np.intp]]:
    """`rows` in pieces of about the same length, `most` at most, for what takes much memory a row."""
    return np.array_split(rows, -(-len(rows) // most)) if len(rows) else []


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities under the model itself, before temperature, penalties and filters."""

    rows: NDArray[np.intp]
    """[n]: rows of the logits whose log probabilities are wanted."""
    top_counts: Int32s
    """[n]: alternatives that each of these rows wants."""
    chosen: Tensor
    """float32 [n]: log probability of each chosen token."""
    top_tokens: Tensor
    """int64 [n, max(top_counts)]: the alternatives, best first."""
    top: Tensor
    """float32 [n, max(top_counts)]: log probabilities of the alternatives."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may follow rows of beams. The worker keeps none of them."""

    rows: NDArray[np.intp]
    """[n]: rows of the logits that belong to beams."""
    counts: Int32s
    """[n]: candidates that each of these rows wants."""
    tokens: Tensor
    """int64 [n, max(counts)]: the most likely tokens, best first."""
    logprobs: Tensor
    """float32 [n, max(counts)]: log probabilities of these tokens."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens that were chosen; on the device at first."""

    tokens: Tensor
    """int64 [rows]."""
    finite: Tensor
    """bool [rows]: False where the model gave no usable logits."""
    logprobs: Logprobs | None
    """None if no row wants any."""
    candidates: Candidates | None = None
    """None if no row belongs to a beam."""

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


def joined(parts: Sequence[Sampled]) -> Sampled:
    """What was chosen for pieces of a step's logits, as of the whole."""
    begins = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
    pairs = list(zip(begins, parts, strict=True))
    logprobs = candidates = None
    if told := [(begin + part.logprobs.rows, part.logprobs) for begin, part in pairs if part.logprobs]:
        logprobs = Logprobs(
            np.concatenate([rows for rows, _ in told]),
            np.concatenate([each.top_counts for _, each in told]),
            torch.cat([each.chosen for _, each in told]),
            _stacked([each.top_tokens for _, each in told]),
            _stacked([each.top for _, each in told]),
        )
    if beams := [(begin + part.candidates.rows, part.candidates) for begin, part in pairs if part.candidates]:
        candidates = Candidates(
            np.concatenate([rows for rows, _ in beams]),
            np.concatenate([each.counts for _, each in beams]),
            _stacked([each.tokens for _, each in beams]),
            _stacked([each.logprobs for _, each in beams]),
        )
    tokens, finite = torch.cat([part.tokens for part in parts]), torch.cat([part.finite for part in parts])
    return Sampled(tokens, finite, logprobs, candidates)


def _stacked(tables: Sequence[Tensor]) -> Tensor:
    """Tables [rows, any] as one, as wide as the widest. What it has beyond a row's own is not read."""
    widest = max(table.shape[1] for table in tables)
    return torch.cat([pad(table, (0, widest - table.shape[1])) for table in tables])


def logprobs_of(raw: Tensor, slots: Int32s, tokens: Tensor, state: SamplingState) -> Logprobs | None:
    """The log probabilities that rows of raw logits, float32 [rows, vocab_size], want beside their tokens.

    `slots` [rows]: the row's slots; `tokens`: int64 [rows].
    """
    wanted = np.flatnonzero(state.logprobs[slots] >= 0)
    if not len(wanted):
        return None
    counts = state.logprobs[slots[wanted]]
    rows = indices(wanted, raw.device)
    logprobs = raw[rows].log_softmax(dim=-1)
    top = logprobs.topk(int(counts.max()), dim=-1)
    chosen = logprobs.gather(1, tokens[rows, None])[:, 0]
    return Logprobs(wanted, counts.astype(np.int32), chosen, top.indices, top.values)


def candidates_of(raw: Tensor, counts: Int32s) -> Candidates | None:
    """The best tokens of those rows of raw logits [rows, vocab_size] that belong to beams.

    `counts` [rows]: candidates that each row wants; 0: it belongs to no beam.
    """
    beams = np.flatnonzero(counts)
    if not len(beams):
        return None
    counts = counts[beams]
    logprobs = raw[indices(beams, raw.device)].float().log_softmax(dim=-1)
    top = logprobs.topk(int(counts.max()), dim=-1)
    return Candidates(beams, counts, top.indices, top.values)
