"""Measures other tilings of attention than the chosen one, to find a faster one for this GPU."""

import itertools
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, StepMetadata
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.triton.attention import attention, latent
from gpu_worker.kernels.triton.attention.launch import Tiling
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.attention import BLOCK_SIZE
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import make_step, pages_for, random

APART, SHARED = PageShape(8, 128, 128), PageShape(1, 576, 512, shared=True)
STEPS = {
    "decode 64 x 8k": (APART, 32, [(1, 8192)] * 64),
    "decode 1 x 64k": (APART, 32, [(1, 65_536)]),
    "prompt of 2k": (APART, 32, [(2048, 2048)]),
    "prompt of 8k": (APART, 32, [(8192, 8192)]),
    "prompts of 1k": (APART, 32, [(1024, 1024)] * 8),
    "latent decode 64 x 8k": (SHARED, 128, [(1, 8192)] * 64),
    "latent decode 1 x 64k": (SHARED, 128, [(1, 65_536)]),
}
"""Pages, query heads, and rows as (tokens, context)."""
TILINGS = [
    (rows, Tiling(*sizes))
    for rows in (64, 128)
    for sizes in itertools.product((32, 64, 128), (4, 8), (2, 3, 4))
]
"""Rows of a full tile, and its keys, warps and stages."""
FASTEST = 3


def measure(bench: Bench) -> None:
    """One row for each step: the time of the chosen tiling, and the fastest of all tilings."""
    steps, tilings = STEPS, TILINGS
    if bench.dry:
        steps, tilings = {"tiny": (PageShape(2, 16, 16), 4, [(1, 40)])}, [(16, Tiling(16, 4, 2))]
    for name, (shape, heads, rows) in steps.items():
        if not bench.has_time(f"tilings of {name}", 15):
            break
        step = make_step(rows, BLOCK_SIZE, bench)
        dtype = torch.float32 if bench.dry else torch.bfloat16
        kernels = TritonKernels(bench.device)
        cache = pages_for(step, shape, BLOCK_SIZE, kernels.kv_format(AUTO, dtype), bench)
        query = random((len(step.positions), heads, shape.key_size), dtype, bench)

        attend = partial(_attend, kernels, step, query, cache)
        row = {"step": name, "chosen us": round(bench.seconds(attend) * 1e6, 1)}
        seconds = partial(_seconds, shape.shared, attend=attend, bench=bench)
        times = sorted(
            (found, f"{most} rows, {one}")
            for most, one in bench.own_share(tilings)
            if (found := seconds(most, one))
        )
        for place, (found, one) in enumerate(times[:FASTEST], 1):
            row[f"no. {place}"] = f"{found * 1e6:.1f} us {one}"
        bench.note("tilings", row)


def _attend(kernels: TritonKernels, step: StepMetadata, query: Tensor, cache: LayerCache) -> Tensor:
    return kernels.begin(step).attend(query, cache)


def _seconds(
    shared: bool, rows: int, one: Tiling, attend: Callable[[], Tensor], bench: Bench
) -> float | None:
    """Seconds with tiling `one`. None if it needs more resources than the GPU has, or no time is left."""
    if not bench.has_time("a tiling"):
        return None
    where, name = (latent, "tile_rows") if shared else (attention, "chunk_rows")
    with (
        mock.patch.object(where, "tiling", return_value=one),
        mock.patch.object(where, name, return_value=rows),
    ):
        try:
            return bench.seconds(attend)
        except Exception as error:  # OutOfResources, which Triton has moved from one module to another
            if "resource" not in str(error).lower():
                raise
            return None
