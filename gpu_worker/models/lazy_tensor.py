"""Tensors of a checkpoint for models of transformers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.models.checkpoint import Checkpoint
from gpu_worker.models.formats.stored import PIECE


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor of a checkpoint. It is read when transformers asks for it."""

    checkpoint: Checkpoint
    name: str
    dtype: torch.dtype

    def __getitem__(self, everything: Any) -> Tensor:
        stored = self.checkpoint.dense(self.name, self.dtype)
        found = torch.empty(stored.shape, dtype=self.dtype)
        pieces = (torch.split(each.view(-1), PIECE) for each in (stored, found))
        for numbers, into in zip(*pieces, strict=True):
            into.copy_(numbers)
            self.checkpoint.forget([numbers])
        return found
