"""Measures decodes of latent attention at the sizes of DeepSeek's models.

A row of the pages is read once for all heads of a token, with some 240 operations for each of its bytes. At
about that ratio a Hopper GPU's arithmetic takes as long as its memory. So the table has shares of both rates.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.attention import BLOCK_SIZE, layers_per_turn
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import make_step, pages_for, random

RANK, ROTATED = 512, 64
SHAPES = ((1, 8192), (8, 8192), (64, 2048), (64, 8192), (128, 8192), (1, 131_072))
"""Pairs of batch and context that are measured with 128 heads and pages of bfloat16."""
KINDS = {"bf16": AUTO, "int8": "int8", "fp8": "fp8"}
CASES = [
    *((128, "bf16", shape) for shape in SHAPES),
    *((heads, kind, (64, 8192)) for heads in (16, 128) for kind in KINDS if (heads, kind) != (128, "bf16")),
]
"""Heads, KV format, and (batch, context). A small model has 16 heads, and so has one GPU of eight."""


def measure(bench: Bench) -> None:
    """One row for each shape that fits."""
    rank, rotated, dtype = RANK, ROTATED, torch.bfloat16
    if bench.dry:
        rank, rotated, dtype = 20, 8, torch.float32
    for heads, kind, (batch, context) in bench.own_share([(4, "int8", (2, 40))] if bench.dry else CASES):
        kernels = TritonKernels(bench.device)
        kv, shape = kernels.kv_format(KINDS[kind], dtype), PageShape(1, rank + rotated, rank, shared=True)
        size = batch * context * kv.token_bytes(shape)
        name = f"latent {batch} x {context}, {heads} heads, {kind}"
        if not bench.has_memory(2 * size) or not bench.has_time(name):
            continue
        step = make_step([(1, context)] * batch, BLOCK_SIZE, bench)
        caches = [pages_for(step, shape, BLOCK_SIZE, kv, bench) for _ in range(layers_per_turn(size, bench))]
        query = random((batch, heads, rank + rotated), dtype, bench)
        attend = kernels.begin(step).attend
        every = partial(_each, attend, query, caches)
        seconds = bench.seconds(every) / len(caches)
        operations = 2 * batch * context * heads * (2 * rank + rotated)
        bench.note(
            "latent",
            {
                "batch": batch,
                "context": context,
                "heads": heads,
                "pages": kind,
                "us": round(seconds * 1e6, 1),
                "of copy": round(size / seconds / (bench.rates.bandwidth or 1), 3),
                "of the matrix rate": round(operations / seconds / (bench.rates.matrix or 1), 3),
            },
        )


def _each(attend: Callable[[Tensor, LayerCache], Tensor], query: Tensor, caches: list[LayerCache]) -> None:
    for cache in caches:
        attend(query, cache)
