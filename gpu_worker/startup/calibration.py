"""Scales of the heads' keys and values, of formats of pages that have one for each head for all time.

They are found out before the first request. A checkpoint may bring scales, which whoever made it has
measured. Otherwise a prompt of drawn tokens is computed with pages of the activations' type, and the largest
key and value of each head, doubled, must not be beyond the largest number of the format. Drawn tokens need no
text, and a scale that is too large costs little in a format with an exponent: of fp8, numbers keep their
precision down to a 28000th of the largest.

A scale is a power of two. So two workers whose last bits differ find the same ones, but for a largest number
that lies within those bits of such a power; and multiplying with it rounds nothing.
"""

import logging
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.kernels.attention import KvFormat
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.kv_scales import stored_scales
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.registry import CausalLM
from gpu_worker.startup.warmup import prompt_step
from gpu_worker.step.batch import BatchLimits
from gpu_worker.step.runner import Runner

log = logging.getLogger(__name__)

TOKENS = 512
"""Of the prompt, at most."""

BLOCK_SIZE = 16
"""Of the pages that it is computed with."""

HEADROOM = 2.0
"""How many times as large as any seen a number may be."""


def head_scales(
    model: CausalLM,
    directory: Path,
    kernels: Kernels,
    kv: KvFormat,
    longest: int,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> list[Tensor]:
    """For each layer float32 [2, kv_heads], of keys and of values; nothing if the format needs none.

    `longest`: tokens that the model can take. All ranks call it at the same time. Raises `ModelError`.
    """
    if kv.largest is None:
        return []
    config = model.config
    stored = stored_scales(directory, config.num_layers, config.pages.heads, ranks)
    if stored is not None:
        if config.pages.shared:
            stored[:, 1] = stored[:, 0]
        log.info("scales of %s pages: those of the checkpoint", kv.name)
        return list(stored.to(device))
    scales = power_of_two(HEADROOM / kv.largest * _largest(model, kernels, min(TOKENS, longest), device))
    measured = scales.min().item(), scales.max().item()
    log.info("scales of %s pages: measured, from %g to %g", kv.name, *measured)
    return list(scales)


def power_of_two(numbers: Tensor) -> Tensor:
    """The least power of two above each; 1 where the number is 0 or not finite."""
    exponents = torch.frexp(numbers).exponent
    ordinary = (numbers > 0) & numbers.isfinite()
    return torch.where(ordinary, torch.ldexp(torch.ones_like(numbers), exponents), 1.0)


def _largest(model: CausalLM, kernels: Kernels, tokens: int, device: torch.device) -> Tensor:
    """Of each layer and head the largest key and value without their signs, float32 [layers, 2, kv_heads]."""
    blocks, vocabulary = -(-tokens // BLOCK_SIZE), model.config.vocab_size
    limits = BatchLimits(blocks, BLOCK_SIZE, 1, tokens, tokens, vocabulary)
    caches = make_caches(model.config, blocks, BLOCK_SIZE, kernels.kv_format(AUTO, model.dtype), device)
    for tensor in (tensor for cache in caches for tensor in cache.tensors()):
        tensor.zero_()  # the last block is not filled to its end
    drawn = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))
    Runner(model, caches, kernels, limits).execute(prompt_step(limits, drawn.int().numpy().tobytes()))
    pages = [each for cache in caches for each in (cache.keys, cache.values)]
    every = torch.stack([each.abs().amax((0, 2, 3)).float() for each in pages])
    return every.view(len(caches), 2, -1)
