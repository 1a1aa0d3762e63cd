"""The parts that decoders are made of. All work on ragged batches: [tokens, ...], no batch dimension."""

import math

import torch
from torch import Tensor, nn

from gpu_worker.models.config import RopeConfig


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang and Sennrich 2019), computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(hidden.dtype)


class Rotary:
    """Rotary position embedding: rotates pairs of dimensions by angles that grow with the position.

    The pairs are (i, i + head_dim / 2), as in Hugging Face checkpoints.
    """

    def __init__(self, config: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype) -> None:
        angles = torch.outer(torch.arange(positions).float(), _frequencies(config, head_dim))
        self._cos = angles.cos().to(dtype)  # [positions, head_dim / 2]
        self._sin = angles.sin().to(dtype)

    def to(self, device: torch.device) -> "Rotary":
        """Move the tables."""
        self._cos, self._sin = self._cos.to(device), self._sin.to(device)
        return self

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, 1, head_dim / 2] for positions int64 [tokens]."""
        return self._cos[positions, None], self._sin[positions, None]


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate states [tokens, heads, head_dim] by what `Rotary.angles` gave."""
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


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
