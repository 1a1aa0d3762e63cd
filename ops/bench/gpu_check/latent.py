"""Decodes of latent attention at the sizes of DeepSeek's models, beside the bytes of their rows.

A row is read for all of a token's heads at once, with some 240 operations for each of its bytes: about where
a Hopper GPU's arithmetic takes as long as its memory. So both shares are told.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.interface import LayerCache
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.attention import BLOCK_SIZE, many_layers
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import Heads, make_pages, make_step, random

HEADS, RANK, ROTATED = 128, 512, 64
SHAPES = ((1, 8192), (8, 8192), (64, 2048), (64, 8192), (128, 8192), (1, 131_072))
"""Batches and contexts."""


def measure(bench: Bench) -> None:
    """One row for each shape that fits."""
    heads, rank, rotated, dtype = HEADS, RANK, ROTATED, torch.bfloat16
    if bench.dry:
        heads, rank, rotated, dtype = 4, 20, 8, torch.float32
    for batch, context in bench.mine([(2, 40)] if bench.dry else SHAPES):
        size = batch * context * (rank + rotated) * dtype.itemsize
        if not bench.has_memory(2 * size) or not bench.has_time(f"latent {batch} x {context}"):
            continue
        step = make_step([(1, context)] * batch, BLOCK_SIZE, bench)
        rows = [
            make_pages(step, Heads(heads, 1, rank + rotated), BLOCK_SIZE, dtype, bench).keys
            for _ in range(many_layers(size, bench))
        ]
        caches = [LayerCache(each, each[..., :rank], shared=True) for each in rows]
        query = random((batch, heads, rank + rotated), dtype, bench)
        attend = TritonKernels(bench.device).begin(step).attend
        every = partial(_each, attend, query, caches)
        seconds = bench.seconds(every) / len(caches)
        operations = 2 * batch * context * heads * (2 * rank + rotated)
        bench.note(
            "latent",
            {
                "batch": batch,
                "context": context,
                "us": round(seconds * 1e6, 1),
                "of copy": round(size / seconds / (bench.rates.bandwidth or 1), 3),
                "of the matrix rate": round(operations / seconds / (bench.rates.matrix or 1), 3),
            },
        )


def _each(attend: Callable[[Tensor, LayerCache], Tensor], query: Tensor, caches: list[LayerCache]) -> None:
    for cache in caches:
        attend(query, cache)
