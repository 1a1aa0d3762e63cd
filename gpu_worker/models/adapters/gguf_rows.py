"""Factors of adapters with their rows in the order that a GGUF file has those of the model in.

llama.cpp has the dimensions of a head that are rotated together side by side, in the architectures that were
its first ones: Llama, Mixtral, Granite.

    q_proj    0 1 2 3 │ 4 5 6 7       rotated together: 0 with 2, 1 with 3
    GGUF      0 2 1 3 │ 4 6 5 7
"""

from dataclasses import replace

from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.adapters.adapter import Adapter
from gpu_worker.models.config import ModelConfig


def in_gguf_order(adapter: Adapter, config: ModelConfig) -> Adapter:
    """The adapter for a model of this configuration, which is in GGUF files. Raises `ModelError`."""
    if config.recurrence is not None and config.recurrence.tiled:
        what = (
            "adapters of this architecture are not served beside GGUF files, which order its rows otherwise"
        )
        raise ModelError(f"{adapter.path}: {what}")
    if not any(rope.interleaved for rope in config.ropes) or config.family.defaults.get("rope_interleave"):
        return adapter
    ends = tuple(config.family.names.qkv[:2])
    return replace(
        adapter,
        factors={
            name: replace(factors, up=_paired(factors.up, config.head_dim))
            if name.endswith(ends)
            else factors
            for name, factors in adapter.factors.items()
        },
    )


def _paired(up: Tensor, head_dim: int) -> Tensor:
    """Rows of heads with their halves alternating. Rows of no whole heads stay: they are refused later."""
    if len(up) % head_dim:
        return up
    return up.view(-1, 2, head_dim // 2, up.shape[1]).transpose(1, 2).reshape(up.shape)
