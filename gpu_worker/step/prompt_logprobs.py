"""Log probabilities of prompts: how likely the model held each token of a prompt before it read it.

    positions   0 1 2 3 │ 4 5 6        one prompt, computed in two steps
    logits of   0 1 2 3   4 5          the head is applied to these positions ...
    tokens        1 2 3 4   5 6        ... and tells of the tokens after them; the first token has none

The head is applied to as many positions at once as the largest step samples, so that no step takes more
memory than that one. Of the logits of a position only what was asked for is kept.
"""

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s, packed_float32s, packed_int32s
from gpu_worker.errors import PlanError
from gpu_worker.kernels.rows import Rows
from gpu_worker.machine.transfer import to_host
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import PromptRows
from proto.worker_pb2 import StepResult


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of tokens of prompts that a step reports, row after row."""

    rows: Int32s
    """[rows]: index in the plan of each row that reports some, ascending."""
    counts: Int32s
    """[rows]: tokens that each row reports."""
    alternatives: Int32s
    """[rows]: most likely tokens that each row reports beside each of these."""
    logprobs: Tensor
    """float32 [tokens]: log probability of each token under the model itself."""
    ranks: Tensor
    """int32 [tokens]: tokens of the vocabulary that are more likely than this one, and one."""
    top_tokens: Tensor
    """int32 [tokens, max(alternatives)]: the most likely tokens, best first."""
    top: Tensor
    """float32 [tokens, max(alternatives)]: log probabilities of these."""

    def on_host(self) -> "PromptLogprobs":
        """The same in main memory, once the device has done the copies."""
        tensors = map(to_host, (self.logprobs, self.ranks, self.top_tokens, self.top))
        return PromptLogprobs(self.rows, self.counts, self.alternatives, *tensors)

    def failed(self) -> list[int]:
        """Rows whose numbers are not finite. Waits for the device."""
        wrong = np.isnan(self.logprobs.cpu().numpy())
        return sorted(set(np.repeat(self.rows, self.counts)[wrong].tolist()))

    def add_to(self, result: StepResult, errors: Container[int]) -> None:
        """Add those of rows that are not in `errors` to a step's result. Waits for the device."""
        good = np.array([row not in errors for row in self.rows.tolist()])
        tokens, alternatives = np.repeat(good, self.counts), np.repeat(self.alternatives, self.counts)
        within = np.arange(self.top.shape[1]) < alternatives[tokens, None]
        message = result.prompt_logprobs
        message.rows.rows = packed_int32s(self.rows[good])
        message.rows.counts = packed_int32s(self.counts[good])
        message.rows.alternatives = packed_int32s(self.alternatives[good])
        message.logprobs = packed_float32s(self.logprobs.cpu().numpy()[tokens])
        message.ranks = packed_int32s(self.ranks.cpu().numpy()[tokens])
        message.top.tokens = packed_int32s(self.top_tokens.cpu().numpy()[tokens][within])
        message.top.logprobs = packed_float32s(self.top.cpu().numpy()[tokens][within])


def prompt_logprobs(
    wanted: PromptRows, rows: Rows, batch: Batch, hidden: Tensor, model: CausalLM
) -> PromptLogprobs | None:
    """What the step's rows report of their prompts; None if no row that runs does.

    `rows`: the rows that run. `hidden` [tokens, hidden_size]: the step's hidden states. Raises `PlanError`
    for a slot that asks for none, or a token that is not known.
    """
    places = np.argsort(rows.index)
    found = np.searchsorted(rows.index, wanted.rows, sorter=places)
    runs = np.isin(wanted.rows, rows.index)
    if not runs.any():
        return None
    at, firsts, counts = places[found[runs]], wanted.firsts[runs], wanted.counts[runs]
    slots = rows.slots[at]
    alternatives = batch.sampling.prompt_logprobs[slots]
    if (alternatives < 0).any() or (firsts + counts > batch.known[slots]).any():
        raise PlanError("prompt_rows: a row of which none are wanted, or a token that is not known")
    # Of each token: where the logits before it come from among the step's tokens, its slot and its position.
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = (np.cumsum(rows.counts, dtype=np.int64) - rows.counts)[at]
    sources = np.repeat(begins + firsts - 1 - rows.starts[at], counts) + within
    sent = batch.send(np.stack((sources, np.repeat(slots, counts), np.repeat(firsts, counts) + within)))
    tokens, most = batch.tables.tokens[sent[1], sent[2]].long(), int(alternatives.max())
    size = min(batch.limits.max_slots, batch.limits.max_step_tokens)
    parts = [
        _of(model.logits(hidden[some]), chosen, most)
        for some, chosen in zip(torch.split(sent[0], size), torch.split(tokens, size), strict=True)
    ]
    return PromptLogprobs(
        wanted.rows[runs], counts, alternatives, *(torch.cat(each) for each in zip(*parts, strict=True))
    )


def _of(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log probabilities and ranks of `tokens`, and the `most` most likely tokens with theirs.

    `logits`: float32 [tokens, vocab_size].
    """
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > chosen).sum(dim=1, dtype=torch.int32) + 1
    top = logprobs.topk(most, dim=-1)
    return chosen[:, 0], ranks, top.indices.int(), top.values
