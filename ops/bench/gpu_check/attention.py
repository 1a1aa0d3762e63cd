"""Measures decode attention: bytes of keys and values read per second, as a share of a copy's bandwidth.

For comparison PyTorch's attention is measured over contiguous keys and values, without pages:
`scaled_dot_product_attention`, and for a few shapes `flex_attention`, which is compiled for each.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from gpu_worker.kernels.attention import LayerCache, StepMetadata
from gpu_worker.kernels.kv_sizes import AUTO, token_bytes
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.bench import Bench
from ops.bench.gpu_check.cases import Heads, make_step, pages_for, random

BLOCK_SIZE = 16
BATCHES = (1, 8, 32, 128, 256)
CONTEXTS = (512, 2048, 8192, 32_768, 131_072)
PAGES = 8 << 30
"""Bytes of keys and values that a case may have at most."""
FLEX = ((32, 2048), (1, 131_072))
"""Pairs of batch and context for which `flex_attention` is measured."""
MANY_BYTES = 512 << 20
"""Bytes of pages that a timed turn reads: more than any cache holds, as with a model's layers."""


def measure(bench: Bench) -> None:
    """One row for each batch and context that fits."""
    shapes = [(batch, context) for context in CONTEXTS for batch in BATCHES]
    heads = Heads(32, 8, 128)
    if bench.dry:
        shapes, heads = [(2, 40)], Heads(4, 2, 16)
    for batch, context in bench.own_share(shapes):
        size = batch * context * token_bytes(heads.pages, "bfloat16")
        if size <= PAGES and bench.has_memory(3 * size) and bench.has_time(f"decode {batch} x {context}"):
            bench.note("decode", _measured(batch, context, heads, bench))


def _measured(batch: int, context: int, heads: Heads, bench: Bench) -> dict[str, Any]:
    step = make_step([(1, context)] * batch, BLOCK_SIZE, bench)
    dtype = torch.float32 if bench.dry else torch.bfloat16
    query = random((batch, heads.query, heads.dim), dtype, bench)
    row: dict[str, Any] = {"batch": batch, "context": context}
    kernels = TritonKernels(bench.device)
    for name, form in (("bf16", AUTO), ("int8", "int8"), ("fp8", "fp8")):
        kv = kernels.kv_format(form, dtype)
        size = batch * context * kv.token_bytes(heads.pages)
        count = layers_per_turn(size, bench)
        layers = [pages_for(step, heads.pages, BLOCK_SIZE, kv, bench) for _ in range(count)]
        seconds = bench.seconds(partial(_attend, kernels, step, query, layers)) / len(layers)
        row |= {f"{name} us": round(seconds * 1e6, 1), f"{name} of copy": _share(size, seconds, bench)}
        del layers
    shape = (batch, context, heads, dtype)
    row["SDPA us"] = round(_contiguous(scaled_dot_product_attention, *shape, bench) * 1e6, 1)
    row["of SDPA"] = round(row["SDPA us"] / row["bf16 us"], 2)
    row["of flex"] = ""
    if (batch, context) in FLEX and bench.has_time(f"flex attention {batch} x {context}", 30):
        flex = _contiguous(torch.compile(flex_attention, dynamic=False), *shape, bench)
        row["of flex"] = round(flex * 1e6 / row["bf16 us"], 2)
    return row


def _attend(
    kernels: TritonKernels, step: StepMetadata, query: torch.Tensor, layers: list[LayerCache]
) -> None:
    attention = kernels.begin(step)
    for cache in layers:
        attention.attend(query, cache)


def _contiguous(
    attend: Callable[..., Any], batch: int, context: int, heads: Heads, dtype: torch.dtype, bench: Bench
) -> float:
    """Seconds of PyTorch's `attend` for one layer, with contiguous keys and values."""
    shape = (batch, heads.kv, context, heads.dim)
    count = layers_per_turn(2 * batch * context * heads.kv * heads.dim * dtype.itemsize, bench)
    pairs = [(random(shape, dtype, bench), random(shape, dtype, bench)) for _ in range(count)]
    query = random((batch, heads.query, 1, heads.dim), dtype, bench)

    def work() -> None:
        for keys, values in pairs:
            attend(query, keys, values, enable_gqa=True)

    return bench.seconds(work) / count


def layers_per_turn(size: int, bench: Bench) -> int:
    """Number of layers of `size` bytes that a timed turn reads."""
    return 1 if bench.dry else max(1, min(MANY_BYTES // size, 128))


def _share(size: int, seconds: float, bench: Bench) -> float:
    """Bytes per second as a share of a copy's bandwidth, its reads and writes together."""
    return round(size / seconds / bench.rates.bandwidth, 3) if bench.rates.bandwidth else 0.0
