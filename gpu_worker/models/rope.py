"""Tables of rotary position embeddings (Su et al. 2021), stretched as the configuration says."""

import math

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Rotary
from gpu_worker.models.config import RopeConfig


def rotary_tables(config: RopeConfig, head_dim: int, positions: int, device: torch.device) -> Rotary:
    """Cosines and sines for so many positions."""
    angles = torch.outer(torch.arange(positions).float(), _frequencies(config, head_dim))
    return Rotary(angles.cos().to(device), angles.sin().to(device))


def _frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position, float32 [head_dim / 2]."""
    frequencies = 1.0 / config.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        # Llama 3.1: wavelengths longer than the old context are stretched, those much shorter are
        # left alone, and between the two the share moves linearly with the frequency.
        turns = config.original_max_positions * frequencies / (2 * math.pi)
        kept = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return frequencies * kept + frequencies / config.factor * (1.0 - kept)
    return frequencies
