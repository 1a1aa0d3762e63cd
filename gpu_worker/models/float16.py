"""Models whose activations float16 does not hold."""

import logging

import torch

log = logging.getLogger(__name__)

_BEYOND = ("Gemma2", "Gemma3", "Gemma4", "Glm4For")
"""Beginnings of architectures whose activations may be greater than float16's largest number, 65504."""


def computed_in(dtype: torch.dtype, asked: bool, architecture: str) -> torch.dtype:
    """Type of weights and activations: `dtype`, if it is `asked` for or holds the activations."""
    if dtype == torch.float16 and architecture.startswith(_BEYOND):
        beyond = f"activations of {architecture} may be beyond the numbers of float16"
        if asked:
            log.warning("QUIRE_DTYPE=float16: %s: bfloat16 has them", beyond)
        else:
            log.info("%s: it is computed in bfloat16", beyond)
            return torch.bfloat16
    return dtype
