"""Measures whole steps of a Llama of 8 billion weights and of gpt-oss 20B, with random weights, one after the
other as in a deployment.

The floor of a step is the time to read its weights, keys and values at the bandwidth of a copy. The column
`of the floor` is the floor over the measured time.
"""

import time
from collections.abc import Iterable

import torch

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.triton.graphs.layouts import DecodeLayout
from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, QuantizedTriton, TritonKernels
from gpu_worker.step.runner import Runner
from ops.bench.gpu_check.bench import SEED, Bench
from ops.bench.gpu_check.models import (
    EIGHT_B,
    GPT_OSS_20B,
    TINY,
    TINY_EXPERTS,
    Shape,
    random_model,
    replay,
    runner_of,
)
from ops.bench.rig.plans import decodes
from proto.worker_pb2 import StepPlan

BATCHES = (1, 8, 64, 256)
CONTEXT = 1024
STEPS = 24
"""Steps of a run."""
WARM = 4
"""First steps of a run, which are not timed."""


def measure(bench: Bench) -> None:
    """One row for each batch that fits into memory, with and without CUDA graphs."""
    measure_model("bf16", TritonKernels(bench.device), AUTO, (1, 3) if bench.dry else BATCHES, bench)


def measure_mixture(bench: Bench) -> None:
    """The same, for a mixture of experts of fp4."""
    shape, batches = (TINY_EXPERTS, (1,)) if bench.dry else (GPT_OSS_20B, BATCHES)
    measure_model("gpt-oss 20B, fp4", KeptTriton(bench.device), AUTO, batches, bench, shape)


def measure_model(
    of: str,
    kernels: TritonKernels,
    pages: str,
    batches: tuple[int, ...],
    bench: Bench,
    shape: Shape | None = None,
) -> None:
    """Add rows for a model with these kernels. `of`: its name in the table. `pages`: its KV format. `shape`:
    by default that of 8 billion weights."""
    shape, context = shape or (TINY if bench.dry else EIGHT_B), 40 if bench.dry else CONTEXT
    kept = PageShape(shape["num_key_value_heads"], shape["head_dim"], shape["head_dim"])
    token_bytes = shape["num_hidden_layers"] * kernels.kv_format(pages, torch.bfloat16).token_bytes(kept)
    every = weight_bytes_of(shape, kernels, 10_000)
    if not bench.has_memory(every):
        bench.found.left_out.append(f"steps of {of}: the weights do not fit")
        return
    model = random_model(shape, kernels, torch.float32 if bench.dry else torch.bfloat16, bench)
    for batch in batches:
        what = f"steps of {of} at batch {batch}"
        if not bench.has_time(what, 20):
            break
        if not bench.has_memory(batch * context * token_bytes):
            bench.found.left_out.append(f"{what}: its pages do not fit")
            break
        runner = runner_of(model, kernels, batch, context, bench.device, pages)
        launched = seconds(runner, batch, context, bench)
        (graph,) = replay(runner, [DecodeLayout(batch)], bench).graphs
        replayed = seconds(runner, batch, context, bench)
        read = context - STEPS // 2
        if window := shape.get("sliding_window", 0):  # in every other layer
            read = (read + min(read, window)) // 2
        moved = weight_bytes_of(shape, kernels, batch) + batch * read * token_bytes
        floor = moved / bench.rates.bandwidth if bench.rates.bandwidth else 0.0
        row = {
            "numbers": of,
            "batch": batch,
            "context": context,
            "ms": round(replayed * 1e3, 2),
            "of the floor": round(floor / replayed, 3),
            "graph alone ms": round(bench.fastest(graph.replay) * 1e3, 2),
            "ms without graphs": round(launched * 1e3, 2),
            "tokens/s": round(batch / replayed),
        }
        bench.note("steps", row)
        del runner, graph


def weight_bytes_of(shape: Shape, kernels: Kernels, tokens: int) -> float:
    """Bytes of weights that a step of `tokens` tokens reads. Of the embedding it reads only a few rows, which
    do not count, and experts of fp4 as far as tokens that choose them by chance go to them."""
    hidden, head = shape["hidden_size"], shape["head_dim"]
    attention = 2 * (shape["num_attention_heads"] + shape["num_key_value_heads"]) * head * hidden
    if experts := shape.get("num_local_experts", 0):
        selected = experts * (1 - (1 - shape["num_experts_per_tok"] / experts) ** tokens)
        mixture = selected * 3 * hidden * shape["intermediate_size"] * 4.5 / 8
        return shape["num_hidden_layers"] * (2 * attention + mixture) + 2 * shape["vocab_size"] * hidden
    layers = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    words = shape["vocab_size"] * hidden
    if isinstance(kernels, Int4Triton):
        return layers * 4.5 / 8 + words
    return (layers + words) * (1 if isinstance(kernels, QuantizedTriton) else 2)


def seconds(runner: Runner, batch: int, context: int, bench: Bench) -> float:
    """Mean seconds of a decode step: see `timed`."""
    count = steps_of(bench)
    return timed(runner, decodes(runner.limits, batch, context, count, SEED), count)


def steps_of(bench: Bench) -> int:
    """Number of steps of a run."""
    return 2 if bench.dry else STEPS


def timed(runner: Runner, plans: Iterable[StepPlan], count: int) -> float:
    """Mean seconds of a step. Each step is given to the device before the step before has its result."""
    first = min(WARM, count)  # that is timed
    runner.reset()
    waiting = None
    began = 0.0
    for plan in plans:
        pending = runner.begin(plan)
        if waiting is not None and (errors := waiting.result().errors):
            raise RuntimeError(errors[0].message)
        waiting = pending
        if plan.step == first:
            began = time.perf_counter()
    assert waiting is not None
    waiting.result()
    return (time.perf_counter() - began) / (count - first + 1)
