"""Tensors of a checkpoint for models of transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
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


def with_tensors(
    kind: Any, config: Any, tensors: dict[str, Any], dtype: torch.dtype
) -> tuple[Any, Mapping[str, Any]]:
    """A model of transformers with these tensors, and what transformers reports of missing and unknown ones.

    `kind`: its class. `tensors`: by their names in the model, whole or lazy. Raises `ModelError` for a tensor
    whose shape is not that of the configuration.
    """
    model, report = kind.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    for name, stored, meant in sorted(report["mismatched_keys"]):
        raise ModelError(f"tensor {name} has shape {list(stored)}, config.json means {list(meant)}")
    return model, report
