"""Measures other tilings of attention than the chosen one, to find a faster one for this GPU."""

import itertools
from functools import partial
from unittest import mock

import torch

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.triton.attention import attention
from gpu_worker.kernels.triton.attention.launch import Tiling
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.attention import BLOCK_SIZE
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import Heads, make_step, pages_for, random

STEPS = {
    "decode 64 x 8k": [(1, 8192)] * 64,
    "decode 1 x 64k": [(1, 65_536)],
    "prefill 8k": [(8192, 8192)],
}
TILINGS = [Tiling(*sizes) for sizes in itertools.product((32, 64, 128), (4, 8), (2, 3, 4))]


def measure(bench: Bench) -> None:
    """One row for each step: the time of the chosen tiling, and the three fastest of all tilings."""
    heads, steps, tilings = Heads(32, 8, 128), STEPS, TILINGS
    if bench.dry:
        heads, steps, tilings = Heads(4, 2, 16), {"tiny": [(1, 40)]}, [Tiling(16, 4, 2)]
    for name, rows in steps.items():
        if not bench.has_time(f"tilings of {name}", 40):
            break
        step = make_step(rows, BLOCK_SIZE, bench)
        dtype = torch.float32 if bench.dry else torch.bfloat16
        kernels = TritonKernels(bench.device)
        cache = pages_for(step, heads.pages, BLOCK_SIZE, kernels.kv_format(AUTO, dtype), bench)
        query = random((len(step.positions), heads.query, heads.dim), dtype, bench)
        attend = partial(kernels.begin(step).attend, query, cache)
        row = {"step": name, "chosen us": round(bench.seconds(attend) * 1e6, 1)}
        times = sorted(
            (seconds, str(one))
            for one in bench.own_share(tilings)
            if (seconds := _seconds(one, attend, bench))
        )
        for place, (seconds, one) in enumerate(times[:3], 1):
            row[f"no. {place}"] = f"{seconds * 1e6:.1f} us {one}"
        bench.note("tilings", row)


def _seconds(one: Tiling, attend: partial[torch.Tensor], bench: Bench) -> float | None:
    """Seconds with tiling `one`. None if it needs more resources than the GPU has, or no time is left."""
    if not bench.has_time("a tiling"):
        return None
    with mock.patch.object(attention, "tiling", return_value=one):
        try:
            return bench.seconds(attend)
        except Exception as error:  # OutOfResources, which Triton has moved from one module to another
            if "resource" not in str(error).lower():
                raise
            return None
