"""Which architecture is which decoder, and how one is loaded."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.errors import CapacityError, ModelError
from gpu_worker.kernels.interface import LayerCache, StepAttention
from gpu_worker.models.config import ModelConfig, read_config
from gpu_worker.models.llama import Llama
from gpu_worker.models.loader import Source, open_checkpoint


class CausalLM(Protocol):
    """A decoder that computes ragged batches on a paged cache."""

    config: ModelConfig
    dtype: torch.dtype
    """Type of weights, activations and KV memory."""

    def __call__(
        self, tokens: Tensor, positions: Tensor, attention: StepAttention, caches: Sequence[LayerCache]
    ) -> Tensor:
        """Hidden states [tokens, hidden_size] for token ids int32 [tokens] at positions int64 [tokens].

        Keys and values go into `caches`, one per layer.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, vocab_size] for those hidden states [rows, hidden_size] that need them."""

    def place(self, device: torch.device) -> None:
        """Give a decoder that was built without memory its own, uninitialized, on the device."""

    def sources(self) -> Iterator[tuple[Tensor, list[Source]]]:
        """Each parameter, and the checkpoint's tensors that make up its rows."""


FAMILIES = {"LlamaForCausalLM": Llama}
"""Decoders by what config.json calls their architecture."""

_DERIVED = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that old checkpoints carry and that follow from the configuration."""


def load_model(
    directory: Path, device: torch.device, dtype: torch.dtype | None = None, max_positions: int = 0
) -> CausalLM:
    """Load the model of a Hugging Face directory.

    `dtype`: None = the checkpoint's. `max_positions`: longest sequence; 0 = the model's own limit.
    The weights' memory plus that of one tensor is needed. Raises `ModelError`, or `CapacityError` if
    that is more than there is; both in one line.
    """
    config = read_config(directory)
    family = FAMILIES.get(config.architecture)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(f"{directory}: architecture {config.architecture} is not supported ({known})")
    positions = max_positions or config.max_position
    with open_checkpoint(directory) as checkpoint:
        model = _build(family, config, positions, dtype or config.dtype)
        try:
            model.place(device)
        except RuntimeError as error:  # OutOfMemoryError is one; a CPU's allocator raises this itself
            raise CapacityError(f"{directory}: no memory on {device} for the weights") from error
        with torch.no_grad():
            checkpoint.fill(model.sources())
        ignored = (*_DERIVED, "lm_head.weight") if config.tie_word_embeddings else _DERIVED
        if unknown := [name for name in checkpoint.unread() if not name.endswith(ignored)]:
            raise ModelError(f"{directory}: config.json does not account for tensor {unknown[0]}")
    return model


def _build(family: type[Llama], config: ModelConfig, positions: int, dtype: torch.dtype) -> CausalLM:
    """A decoder whose parameters have a shape and a type, and no memory yet."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            return family(config, positions)
    finally:
        torch.set_default_dtype(before)
