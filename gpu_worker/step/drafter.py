"""A small model that guesses what the large one will say next.

It has pages of its own in the same blocks: a block that is shared, copied or moved is so for both models. To
keep it that way it computes in every step whatever the large one is about to compute, and guesses on the way:

    row          a b c d · · ·       known up to d; three drafts are wanted
    1st pass     a b c d             guesses e
    2nd pass             e           guesses f
    3rd pass               f         guesses g
    4th pass                 g

Its guesses are drawn as the large model's tokens are, with the same noise at the same position: both choose
the token with the greatest sum of logit and noise. So where the two distributions are alike, the two draws
mostly are one (Gumbel coupling; Daliri, Musco and Suresh 2025, "Coupling without Communication and
Drafter-Invariant Speculative Decoding").
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from gpu_worker.arrays import Int32s
from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import LayerCache
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.registry import CausalLM, load_model
from gpu_worker.step.batch import Batch
from gpu_worker.step.forward import Forward


class Drafter:
    """A draft model with its pages."""

    def __init__(self, model: CausalLM, caches: Sequence[LayerCache], kernels: Kernels) -> None:
        """`caches`: as many blocks as the large model's, of the same size."""
        self.model = model
        self.caches = caches
        self.forward = Forward(model, caches, kernels)
        self._kernels = kernels

    def follow(self, batch: Batch, rows: Rows, guesses: Int32s) -> None:
        """Compute the tokens of the rows, of which the last `guesses` [rows] are guessed here and written
        to the batch's tokens."""
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
            guessed = self._kernels.sample(logits, slots, device_slots, starts, batch.sampling.state)
            batch.put(device_slots, starts, guessed.tokens)


def load_draft(
    directory: Path,
    target: Path,
    model: CausalLM,
    kernels: Kernels,
    device: torch.device,
    longest: int,
    ranks: Ranks = ALONE,
) -> CausalLM:
    """The draft model for `model`, which lies in `target` and computes sequences of up to `longest` tokens.
    It is split among the ranks as that one is, so that all of them guess the same.

    Raises `ModelError` if the two do not fit together.
    """
    draft = load_model(directory, device, kernels, model.dtype, longest, ranks)
    theirs, ours = draft.config, model.config
    if theirs.vocab_size != ours.vocab_size or _vocabulary(directory) != _vocabulary(target):
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
    """The tokens by number, as far as there is a file that says."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    return tokenizer["model"].get("vocab"), tokenizer.get("added_tokens")
