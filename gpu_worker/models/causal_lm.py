"""What the worker needs of a model."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.kernels.attention import Cache, StepAttention
from gpu_worker.models.config import Shape
from gpu_worker.models.sight import Seen
from gpu_worker.models.vision import Tower


class CausalLM(Protocol):
    """A decoder that computes ragged batches on a paged cache."""

    @property
    def config(self) -> Shape:
        """Sizes of the model."""

    dtype: torch.dtype
    """Type of activations."""
    tower: Tower | None
    """Sees images; None: it has not been loaded."""

    def __call__(
        self, tokens: Tensor, step: StepAttention, caches: Sequence[Cache], seen: Seen | None = None
    ) -> Tensor:
        """Hidden states [tokens, hidden_size] for the step's token ids, int32 [tokens].

        Keys, values and states go into `caches`, one for each of `config.kept`. `seen`: what some of the
        tokens see in images.
        """

    def normed(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden_size] after the last norm: inputs of the head, and embeddings."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [rows, vocab_size], for hidden states [rows, hidden_size] before the last norm.

        A classifier with a classification head has none.
        """

    def scores(self, hidden: Tensor) -> Tensor:
        """A classifier's logits of its labels, float32 [rows, num_labels], for hidden states before the last
        norm."""
