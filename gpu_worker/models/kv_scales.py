"""Calibrated scales of keys and values in a checkpoint."""

import re
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.ranks import ALONE, Ranks

ENDS = (".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")
"""Ends of the scales' names: of vLLM and compressed-tensors, then of first versions of compressed-tensors."""

UNUSED = (".q_scale", ".prob_scale")
"""Ends of names of other scales, for queries and attention weights in fp8, which are not used here."""

_NAME = re.compile(r"\.(\d+)\.(?:.+\.)?([kv])(?:_scale|_proj\.output_scale)$")


def stored_scales(directory: Path, layers: int, kv_heads: int, ranks: Ranks = ALONE) -> Tensor | None:
    """Scales of the rank's keys and values, float32 [layers, 2, kv_heads]; None if the checkpoint has none.

    Pages hold keys and values divided by their scale. Raises `ModelError` if a scale is missing or not
    positive, or if a tensor has neither one scale nor one for each head.
    """
    scales = torch.zeros(layers, 2, kv_heads)
    with open_checkpoint(directory) as checkpoint:
        found = {name: match for name in sorted(checkpoint.names()) if (match := _NAME.search(name))}
        for name, match in found.items():
            tensor = _own(checkpoint.whatever(name).flatten().float(), kv_heads, ranks)
            if not len(tensor) or not ((tensor > 0) & tensor.isfinite()).all():
                raise ModelError(f"tensor {name}: a positive scale is needed, one in all or one of each head")
            if int(match[1]) < layers:
                scales[int(match[1]), "kv".index(match[2])] = tensor
    if not found:
        return None
    if len(missing := (scales == 0).any(2).nonzero()):
        layer, side = missing[0].tolist()
        raise ModelError(f"{directory}: scales of keys and values, but none of layer {layer}'s {'kv'[side]}")
    return scales


def _own(scales: Tensor, kv_heads: int, ranks: Ranks) -> Tensor:
    """Scales of the rank's heads; empty if their number is neither one nor the number of heads."""
    if len(scales) in (1, ranks.count * kv_heads):
        return scales if len(scales) == 1 else scales[ranks.rank * kv_heads :][:kv_heads]
    if kv_heads == 1 and ranks.count % len(scales) == 0:  # several ranks have the same head
        return scales[ranks.rank * len(scales) // ranks.count :][:1]
    return scales[:0]
