"""The way into shared pages, in plain PyTorch on every device: see `StepAttention.write_latent`."""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Rotary, StepMetadata


def write_latent(
    query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache, step: StepMetadata
) -> None:
    """As the method, of a step."""
    cos, sin = rotary.cos[step.lines, None], rotary.sin[step.lines, None]
    for states in (query, latent[:, None]):
        turned = states[..., -2 * rotary.cos.shape[1] :]
        turned.copy_(rotated(turned, cos, sin))
    places = step.kv_entries // cache.block_size, slice(None), step.kv_entries % cache.block_size
    cache.format.store(cache, places, latent[:, None])


def rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """States [tokens, heads, head_dim] rotated by cosines and sines [tokens, 1, head_dim / 2], in float32."""
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(states.dtype)
