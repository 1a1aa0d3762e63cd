"""Measures steps of an 8B-shaped Llama with chunks, drafts and decodes, with and without CUDA graphs.

The least time of such a step is the time to read its weights, or to multiply them with its tokens.
"""

import torch

from gpu_worker.kernels.triton.graphs.layouts import layouts_for
from gpu_worker.kernels.triton.kernels import TritonKernels
from ops.bench.gpu_check.bench import SEED, Bench
from ops.bench.gpu_check.models import EIGHT_B, TINY, random_model, replay, runner_of
from ops.bench.gpu_check.steps import steps_of, timed, weight_bytes_of
from ops.bench.rig.plans import repeated

SLOTS, LONGEST = 64, 1024
STEPS = {
    "4 drafts": [(5, 1000)],
    "4 drafts each of 8": [(5, 1000)] * 8,
    "a prompt of 32": [(32, 32)],
    "a prompt of 32 beside 31 decodes": [*[(1, 500)] * 31, (32, 32)],
    "a prompt of 128 beside 31 decodes": [*[(1, 500)] * 31, (128, 128)],
    "a prompt of 400 beside 60 decodes": [*[(1, 500)] * 60, (400, 400)],
}
"""Rows of each step, as (tokens, context)."""


def measure(bench: Bench) -> None:
    """One row for each kind of step."""
    shape = TINY if bench.dry else EIGHT_B
    slots, longest = (3, 40) if bench.dry else (SLOTS, LONGEST)
    kinds = {"tiny": [(1, 30), (5, 40)]} if bench.dry else STEPS
    kernels = TritonKernels(bench.device)
    weight_bytes = weight_bytes_of(shape, kernels, 1)
    numbers = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    if not bench.has_memory(weight_bytes + 2 * slots * longest * numbers):
        bench.found.left_out.append("mixed steps: there is no room for weights and pages")
        return
    model = random_model(shape, kernels, torch.float32 if bench.dry else torch.bfloat16, bench)
    runner = runner_of(model, kernels, slots, longest, bench.device)

    def seconds(rows: list[tuple[int, int]]) -> float:
        count = steps_of(bench)
        return timed(runner, repeated(runner.limits, rows, count, SEED), count)

    launched = {name: seconds(rows) for name, rows in kinds.items()}
    for name, rows in kinds.items():
        tokens = sum(count for count, _ in rows)
        layouts = layouts_for(runner.limits.max_slots, runner.limits.max_step_tokens)
        layout = next(each for each in layouts if each.fits(len(rows), tokens))
        replay(runner, [layout], bench)
        replayed = seconds(rows)
        row = {
            "step": name,
            "tokens": tokens,
            "ms": round(replayed * 1e3, 2),
            "ms without graphs": round(launched[name] * 1e3, 2),
        }
        if bench.rates.bandwidth:
            floor = max(weight_bytes / bench.rates.bandwidth, weight_bytes * tokens / bench.rates.matrix)
            row["of the floor"] = round(floor / replayed, 3)
        bench.note("mixed steps", row)
