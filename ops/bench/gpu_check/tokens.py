"""Checks the shipped model's tokens: the same on GPU and CPU, with and without CUDA graphs."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from gpu_worker.arrays import packed_int32s
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.graphs.layouts import layouts_for
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.models.load import load_model
from gpu_worker.step.runner import Runner
from ops.bench.gpu_check.bench import SEED, Bench
from ops.bench.gpu_check.models import BLOCK_SIZE, TINY, random_model, replay, runner_of
from ops.bench.rig.plans import GREEDY
from ops.model_directory.settings import SHIPPED_MODEL
from proto.arrays import pack, unpack
from proto.sampling import greedy
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot, Rows, StepPlan

PROMPTS = 6
OUTPUT = 48
DRAWN = greedy(temperature=1, top_p=0.9, top_k=40, repetition_penalty=1.1, seed=5, logprobs=2)


def check(bench: Bench) -> None:
    """Check that tokens are equal in float32, and that at least a quarter are in bfloat16."""
    cpu = torch.device("cpu")
    if bench.dry:  # the shipped model takes minutes in the interpreter
        plain, own = _tiny(ReferenceKernels(), bench), _tiny(TritonKernels(cpu), bench)
        count, output = 2, 3
    else:
        plain = _shipped(cpu, torch.float32)
        own = _shipped(bench.device, torch.float32)
        count, output = PROMPTS, OUTPUT
    for name, params in (("greedy", GREEDY), ("drawn", DRAWN)):
        expected = generate(plain, params, count, output)
        _note(name, generate(own, params, count, output, watched=True), expected, bench)
    replay(own, layouts_for(own.limits.max_slots, own.limits.max_step_tokens), bench)
    expected = generate(plain, GREEDY, count, output)
    _note("replayed", generate(own, GREEDY, count, output, watched=True), expected, bench)
    if not bench.dry:  # rounding may change a token, and so all tokens after it
        half = generate(_shipped(bench.device, torch.bfloat16), GREEDY, count, output)
        _note("in bfloat16", half, expected, bench, most=0.75)


def _note(
    name: str, found: list[list[int]], expected: list[list[int]], bench: Bench, most: float = 0.0
) -> None:
    """Add a row, and check that at most the share `most` of the tokens differ."""
    pairs = zip(_flat(found), _flat(expected), strict=True)
    same = [one == other for one, other in pairs]
    share = sum(same) / len(same)
    bench.note("tokens", {"tokens": name, "share that is the CPU's": round(share, 3)})
    bench.expect(share >= 1 - most, f"{name}: {share:.3f} of the GPU's tokens are the CPU's")


def _tiny(kernels: Kernels, bench: Bench) -> Runner:
    """A runner of a tiny random model. The model is the same each time."""
    bench.generator.manual_seed(SEED)
    model = random_model(TINY, kernels, torch.float32, bench)
    return runner_of(model, kernels, 8, 64, bench.device)


def _shipped(device: torch.device, dtype: torch.dtype) -> Runner:
    kernels = TritonKernels(device) if device.type == "cuda" else ReferenceKernels()
    return runner_of(load_model(SHIPPED_MODEL, device, kernels, dtype), kernels, 8, 256, device)


def _flat(answers: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(answers))


def generate(
    runner: Runner, params: SamplingParams, count: int, output: int, watched: bool = False
) -> list[list[int]]:
    """Generate `output` tokens for each of `count` prompts, which join the batch one after the other.

    `watched`: on a GPU raise if `Runner.begin` waits for the device.
    """
    chance = np.random.default_rng(SEED)
    answers: list[list[int]] = [[] for _ in range(count)]
    lengths = [int(chance.integers(3, 24)) for _ in range(count)]
    runner.reset()
    for step in range(count + output):
        joined = min(step + 1, count)
        going = [slot for slot in range(joined) if len(answers[slot]) < output]
        if not going:
            break
        new = [_new(step, lengths[step], params, runner, chance)] if step < count else []
        known = [lengths[slot] + len(answers[slot]) for slot in going]
        starts = [0 if not answers[slot] else end - 1 for slot, end in zip(going, known, strict=True)]
        plan = StepPlan(
            step=step + 1,
            new_slots=new,
            rows=Rows(
                slots=pack(going),
                starts=pack(starts),
                counts=pack([end - start for start, end in zip(starts, known, strict=True)]),
                samples=b"\1" * len(going),
            ),
        )
        with _watch() if watched and runner.device.type == "cuda" else nullcontext():
            pending = runner.begin(plan)
        result = pending.result()
        if result.errors:
            raise RuntimeError(result.errors[0].message)
        for slot, token in zip(going, unpack(result.tokens), strict=True):
            answers[slot].append(token)
    return answers


@contextmanager
def _watch() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _new(
    slot: int, length: int, params: SamplingParams, runner: Runner, chance: np.random.Generator
) -> NewSlot:
    limits = runner.limits
    blocks = limits.max_model_len // BLOCK_SIZE
    return NewSlot(
        slot=slot,
        tokens=packed_int32s(chance.integers(10, limits.vocab_size, length, np.int32)),
        prompt_length=length,
        block_ids=pack(range(slot * blocks, (slot + 1) * blocks)),
        sampling=params,
    )
