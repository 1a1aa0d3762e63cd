"""A draft model: a small model that proposes the next tokens of the target model.

Both models use the same block ids, and each has pages of its own. A block that is shared, copied or moved is
so in both models. Therefore the draft model computes every token that the target model computes, in the same
step and before it. In the same passes it proposes drafts:

    row          a b c d · · ·       known up to d; three drafts are wanted
    1st pass     a b c d             proposes e
    2nd pass             e           proposes f
    3rd pass               f         proposes g
    4th pass                 g

Drafts are sampled as the target model's tokens are, with the same noise at the same position: both models
choose the token with the greatest sum of logit and noise. Where the two distributions are alike, the two
models mostly choose the same token (Gumbel coupling; Daliri, Musco and Suresh 2025, "Coupling without
Communication and Drafter-Invariant Speculative Decoding").

Models of one tokenizer may have different numbers of rows in their embeddings: the last ones are there for
round sizes, or for images. The draft model never proposes what only one of them has.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.arrays import Int32s
from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import Cache, StepMetadata
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.load import load_model
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.sight import Seen
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.batch import Batch
from gpu_worker.step.forward import Forward
from ops.model_directory.files import FileError, read_json


class DraftModel:
    """A draft model with its KV pages. See `Drafter`."""

    def __init__(self, model: CausalLM, caches: Sequence[Cache], kernels: Kernels, vocab_size: int) -> None:
        """`caches`: the draft model's pages, with the target model's number of blocks and block size.
        `vocab_size`: of the target model."""
        self.model = model
        self.caches = caches
        self._missing = vocab_size - model.config.vocab_size
        self.forward = (_DraftForward if self._missing > 0 else Forward)(model, caches, kernels)
        self.forwards: Sequence[Forward] = (self.forward,)
        self._kernels = kernels

    def propose(self, batch: Batch, rows: Rows, guesses: Int32s) -> None:
        """See `Drafter.propose`. All tokens of the rows are computed."""
        slots, starts, counts, left = rows.slots, rows.starts, rows.counts - guesses, guesses
        while True:
            order = np.argsort(counts, kind="stable")
            slots, starts, counts, left = (each[order] for each in (slots, starts, counts, left))
            hidden, _ = self.forward(batch, Rows(order, slots, starts, counts, counts))
            going = np.flatnonzero(left)
            if not len(going):
                return
            lasts = np.cumsum(counts)[going] - 1
            starts, slots, left = (starts + counts)[going], slots[going], left[going] - 1
            counts = np.ones_like(starts)
            places, device_slots = batch.send(np.stack((lasts, slots)))
            logits = self.model.logits(hidden[places])
            if self._missing:  # below zero the draft model has more, which are cut off
                logits = pad(logits, (0, self._missing), value=-torch.inf)
            guessed = self._kernels.sample(logits, slots, device_slots, starts, batch.sampling.state)
            batch.write_tokens(device_slots, starts, guessed.tokens)

    def follow(self, batch: Batch, rows: Rows, hidden: Tensor, seen: Seen | None = None) -> None:
        """See `Drafter.follow`. A draft model has computed the rows by itself."""

    def verified(self, batch: Batch, rows: Rows, samples: SamplePositions, kept: Int32s) -> None:
        """See `Drafter.verified`. What is in pages behind the tokens that hold is never read."""


class _DraftForward(Forward):
    """Takes tokens that only the target model has for the draft model's last one."""

    def metadata(self, batch: Batch, rows: Rows) -> tuple[StepMetadata, Tensor, Tensor]:
        step, tokens, slots = super().metadata(batch, rows)
        return step, self._known(tokens), slots

    def compute(self, tokens: Tensor, step: StepMetadata) -> Tensor:
        return super().compute(self._known(tokens), step)

    def _known(self, tokens: Tensor) -> Tensor:
        return tokens.clamp(max=self.model.config.vocab_size - 1)


def load_draft(
    directory: Path,
    target: Path,
    model: CausalLM,
    kernels: Kernels,
    device: torch.device,
    longest: int,
    ranks: Ranks = ALONE,
) -> CausalLM:
    """Load the draft model in `directory` for the target model `model`.

    `target`: directory of the target model. `longest`: tokens of the longest sequence that is served. The
    draft model is split among the ranks like the target model, so that all ranks propose the same tokens.

    Raises `ModelError` if the tokenizers differ, or the sizes of the vocabularies do and there are no
    tokenizers, or the draft model takes shorter sequences or looks back further than the target model.
    """
    draft = load_model(directory, device, kernels, model.dtype, longest, ranks)
    theirs, ours = draft.config, model.config
    if theirs.num_labels or ours.num_labels:
        raise ModelError(f"QUIRE_DRAFT_MODEL={directory}: a classifier generates nothing")
    if theirs.headless or ours.headless:
        raise ModelError(f"QUIRE_DRAFT_MODEL={directory}: a model without a head generates nothing")
    if theirs.bidirectional or ours.bidirectional:
        raise ModelError(f"QUIRE_DRAFT_MODEL={directory}: an encoder generates nothing")
    if theirs.recurrent:
        raise ModelError(f"QUIRE_DRAFT_MODEL={directory}: a recurrent model cannot take back what it guesses")
    words = _vocabulary(directory)
    if words != _vocabulary(target) or (words is None and theirs.vocab_size != ours.vocab_size):
        raise ModelError(f"QUIRE_DRAFT_MODEL={directory}: its vocabulary is not that of {target}")
    if theirs.max_position < longest:
        raise ModelError(
            f"QUIRE_DRAFT_MODEL={directory}: made for {theirs.max_position} tokens, {longest} are served"
        )
    if 0 < ours.window < longest and not 0 < theirs.window <= ours.window:
        raise ModelError(
            f"QUIRE_DRAFT_MODEL={directory}: looks back further than the {ours.window} tokens of {target}"
        )
    return draft


def _vocabulary(directory: Path) -> object:
    """The vocabulary and the added tokens in `tokenizer.json`; None if there is no such file."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        tokenizer = read_json(path, 2**29)
        return tokenizer["model"].get("vocab"), tokenizer.get("added_tokens")
    except (FileError, KeyError, AttributeError) as error:
        raise ModelError(f"{path} is not a tokenizer: {error}") from error
