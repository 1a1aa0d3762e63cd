"""Scales of keys and values, for KV formats with one fixed scale for each head.

Scales are set before the first request. If the checkpoint brings measured scales, these are used. Otherwise a
prompt of random tokens is computed with pages of the activations' type. Each head's scale is such that twice
its largest key or value fits into the format. Random tokens need no text. A scale that is too large costs
little in a format with an exponent: fp8 numbers keep their precision down to a 28000th of the largest.

A scale is a power of two, so multiplying with it rounds nothing. Two workers whose results differ in the last
bits find the same scales, unless a largest number is as close as that to a power of two.
"""

import logging
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.kernels.attention import KvFormat, LayerCache
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.kv_scales import stored_scales
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.startup.sizing import enough_memory
from gpu_worker.startup.warmup import prompt_step
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner

log = logging.getLogger(__name__)

TOKENS = 512
"""Tokens of the random prompt, at most."""

BLOCK_SIZE = 16
"""Tokens per block of the pages that the random prompt is computed with."""

HEADROOM = 2.0
"""Factor by which keys and values may exceed the largest ones of the random prompt."""


def head_scales(
    model: CausalLM,
    directory: Path,
    kernels: Kernels,
    kv: KvFormat,
    longest: int,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> list[Tensor]:
    """For each layer with pages float32 [2, kv_heads]: scales of keys, then of values. Empty if the format
    has none, or the model has no pages.

    `longest`: tokens of the longest sequence that is served. All ranks must call this at the same time.
    Raises `ModelError` if the checkpoint's scales do not fit the model, and `OutOfMemoryError`.
    """
    if kv.largest is None or not model.config.pages:
        return []
    config = model.config
    pages = config.pages[0]  # only a family of `families/` can have scales, and it has the same in all layers
    stored = stored_scales(directory, config.num_layers, pages.heads, ranks)
    found = list[Tensor]()
    if stored is not None:
        if pages.shared:
            stored[:, 1] = stored[:, 0]
        log.info("scales of %s pages: those of the checkpoint", kv.name)
        assert isinstance(config, ModelConfig)
        paged = [any(isinstance(each, PageShape) for each in kept) for kept in config.kept_by_layer]
        found = list(stored[torch.tensor(paged)].to(device))
    if len(found) == len(config.pages):
        return found
    tokens = min(TOKENS, longest)
    with enough_memory(device, f" for a prompt of {tokens} tokens, which scales are measured with"):
        largest = _largest(model, kernels, tokens, device)
    scales = [power_of_two(HEADROOM / kv.largest * each) for each in largest]
    measured = min(each.min().item() for each in scales), max(each.max().item() for each in scales)
    log.info("scales of %s pages: measured, from %g to %g", kv.name, *measured)
    return found + scales[len(found) :]  # checkpoints have none of index keys


def power_of_two(numbers: Tensor) -> Tensor:
    """The least power of two above each number; 1 where the number is 0 or not finite."""
    exponents = torch.frexp(numbers).exponent
    ordinary = (numbers > 0) & numbers.isfinite()
    return torch.where(ordinary, torch.ldexp(torch.ones_like(numbers), exponents), 1.0)


def _largest(model: CausalLM, kernels: Kernels, tokens: int, device: torch.device) -> list[Tensor]:
    """The largest absolute key and value of each head, float32 [2, kv_heads] of each layer."""
    blocks, vocabulary = -(-tokens // BLOCK_SIZE), model.config.vocab_size
    limits = BatchLimits(
        num_blocks=blocks,
        block_size=BLOCK_SIZE,
        max_slots=1,
        max_model_len=tokens,
        max_step_tokens=tokens,
        vocab_size=vocabulary,
        num_labels=model.config.num_labels,
        headless=model.config.headless,
    )
    caches = make_caches(model.config, blocks, BLOCK_SIZE, kernels.kv_format(AUTO, model.dtype), device)
    for tensor in (tensor for cache in caches for tensor in cache.tensors()):
        tensor.zero_()  # the prompt may not fill the last block
    drawn = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))
    Runner(model, caches, kernels, limits).execute(prompt_step(limits, drawn.int().numpy().tobytes()))
    pages = [(cache.keys, cache.values) for cache in caches if isinstance(cache, LayerCache)]
    return [torch.stack([each.abs().amax((0, 2, 3)).float() for each in both]) for both in pages]
