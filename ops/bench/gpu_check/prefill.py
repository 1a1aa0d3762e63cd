"""Measures ragged prefill over pages, and for comparison PyTorch's flash attention, prompt after prompt."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import Heads, make_step, pages_for, random

BLOCK_SIZE = 16
STEPS = {
    "one of 2k": [(2048, 2048)],
    "one of 8k": [(8192, 8192)],
    "eight of 1k": [(1024, 1024)] * 8,
    "ragged": [(200, 200), (700, 700), (1500, 1500), (3000, 3000), (90, 90)],
    "2k after 14k": [(2048, 16_384)],
    "chunk beside decodes": [*[(1, 2000)] * 64, (2048, 2048)],
}


def measure(bench: Bench) -> None:
    """One row for each kind of step."""
    heads, kinds = Heads(32, 8, 128), STEPS
    if bench.dry:
        heads, kinds = Heads(4, 2, 16), {"tiny": [(1, 30), (40, 40), (9, 20)]}
    for name in bench.own_share(list(kinds)):
        if bench.has_time(f"prefill {name}"):
            bench.note("prefill", _measured(name, kinds[name], heads, bench))


def _measured(name: str, rows: list[tuple[int, int]], heads: Heads, bench: Bench) -> dict[str, Any]:
    dtype = torch.float32 if bench.dry else torch.bfloat16
    step = make_step(rows, BLOCK_SIZE, bench)
    kernels = TritonKernels(bench.device)
    cache = pages_for(step, heads.pages, BLOCK_SIZE, kernels.kv_format(AUTO, dtype), bench)
    query = random((len(step.positions), heads.query, heads.dim), dtype, bench)
    attention = kernels.begin(step)
    seconds = bench.seconds(lambda: attention.attend(query, cache))
    attended = sum(count * (context - count) + count * (count + 1) // 2 for count, context in rows)
    operations = 4 * heads.query * heads.dim * attended
    flash = _flash(rows, heads, dtype, bench)
    matrix = bench.rates.matrix
    return {
        "step": name,
        "us": round(seconds * 1e6, 1),
        "TFLOP/s": round(operations / seconds / 1e12, 1),
        "of the matrix rate": round(operations / seconds / matrix, 3) if matrix else 0.0,
        "SDPA us": round(flash * 1e6, 1) if flash else "",
        "of SDPA": round(flash / seconds, 3) if flash else "",
    }


def _flash(rows: list[tuple[int, int]], heads: Heads, dtype: torch.dtype, bench: Bench) -> float:
    """Seconds of PyTorch for all chunks. 0 if a chunk has earlier context: that would need a mask."""
    chunks = [(count, context) for count, context in rows if count > 1]
    if any(count != context for count, context in chunks) or len(chunks) < len(rows):
        return 0.0
    triples = [
        tuple(random((1, n, count, heads.dim), dtype, bench) for n in (heads.query, heads.kv, heads.kv))
        for count, _ in chunks
    ]

    def work() -> None:
        for query, keys, values in triples:
            scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)

    return bench.seconds(work)
