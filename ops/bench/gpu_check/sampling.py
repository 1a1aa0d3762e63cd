"""Measures sampling over a large vocabulary, and checks that Triton samples the reference's tokens."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gpu_worker.kernels.reference.sampling import sample
from gpu_worker.kernels.sampling import Sampled
from gpu_worker.kernels.triton.sampling import sample as in_triton
from gpu_worker.step.batch import Batch
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.plan import read_plan
from ops.bench.gpu_check.bench import SEED, Bench
from proto.arrays import pack
from proto.sampling import greedy
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot, StepPlan

BATCHES = (1, 32, 256)
VOCABULARY = 128_256
KNOWN = 500
"""Tokens of each row so far."""
TURNS = 20
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "top-k, top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "typical-p, xtc": {"temperature": 1.0, "typical_p": 0.9, "xtc_probability": 0.5},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}


def measure(bench: Bench) -> None:
    """One row for each batch and kind of sampling. Times include the host's."""
    batches, vocabulary = ((1,), 300) if bench.dry else (BATCHES, VOCABULARY)
    for batch in batches:
        # As with a model's logits few tokens have most of the mass.
        logits = 3 * torch.randn(batch, vocabulary, device=bench.device, generator=bench.generator)
        for name, changes in ASKED.items():
            if bench.has_time(f"sampling {name} at batch {batch}"):
                params = greedy(**{"seed": SEED, **changes})
                _measure(name, logits, params, bench)


def _measure(name: str, logits: torch.Tensor, params: SamplingParams, bench: Bench) -> None:
    rows, vocabulary = logits.shape
    batch = Batch(BatchLimits(1, 16, rows, KNOWN + 8, rows, vocabulary), bench.device)
    chance = np.random.default_rng(SEED)
    new = [
        NewSlot(
            slot=slot,
            tokens=pack(chance.integers(0, vocabulary, KNOWN).tolist()),
            prompt_length=KNOWN // 2,
            sampling=params,
        )
        for slot in range(rows)
    ]
    batch.apply(read_plan(StepPlan(step=1, new_slots=new), rows))
    slots, known = np.arange(rows, dtype=np.int32), batch.known[:rows]
    places = batch.send(slots)

    def by(one: Callable[..., Sampled]) -> Callable[[], Sampled]:
        return lambda: one(logits, slots, places, known, batch.sampling.state)

    own, other = by(in_triton.sample), by(sample)
    found, expected = own(), other()
    differing = int((found.tokens != expected.tokens).sum())
    # Logarithms differ in their last bits, so a draw may differ where two scores are almost equal.
    bench.expect(
        differing <= rows // 50, f"sampling {name}: {differing} of {rows} tokens are not the reference's"
    )
    row: dict[str, Any] = {"asked": name, "batch": rows}
    row |= {
        what: round(_seconds(work, bench) * 1e6, 1) for what, work in (("us", own), ("PyTorch us", other))
    }
    row["GPU us"] = "" if bench.dry else round(_on_gpu(own) * 1e6, 1)
    bench.note("sampling", row)


def _on_gpu(work: Callable[[], object]) -> float:
    """Seconds that the GPU computes in a turn, without its waits for the host."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(TURNS):
            work()
        torch.cuda.synchronize()
    events = (event for event in (seen.events() or ()) if event.device_type == DeviceType.CUDA)
    return float(sum(event.time_range.elapsed_us() for event in events)) / 1e6 / TURNS


def _seconds(work: Callable[[], object], bench: Bench) -> float:
    """Mean seconds of a turn; the turns are given to the device without waiting."""
    turns = 1 if bench.dry else TURNS
    if not bench.dry:
        work()
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(turns):
        work()
    if not bench.dry:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / turns
