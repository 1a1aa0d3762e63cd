"""Before the first step: one of the largest size, to see what memory it takes; steps of every kind, so that a
GPU's kernels are compiled; and what it costs to compute a token and to move a block."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from gpu_worker.memory.host import HostOffer
from gpu_worker.step.batch import BatchLimits
from gpu_worker.step.runner import Runner
from proto import arrays
from proto.sampling import greedy
from proto.worker_pb2 import Copies, NewSlot, Rows, StepPlan

SAMPLE_TOKENS = 64
"""Tokens of the prompt whose time is taken on a CPU, which they keep busy; a GPU takes a whole step's."""

SAMPLE_BLOCKS = 4
"""Blocks that are moved when that time is taken: as many as a step may well have to move."""

REPEATS = 5
"""The best counts: the first makes ready what later ones find."""


def full_step(limits: BatchLimits) -> StepPlan:
    """Every slot at the end of the longest sequence: one decode each, and a chunk of a prefill that
    takes what is left of the step's budget.
    """
    rows = min(limits.max_slots, limits.max_step_tokens)
    longest = limits.max_model_len
    return step_of(
        limits, [longest] * rows, [min(limits.max_step_tokens - rows + 1, longest)] + [1] * (rows - 1)
    )


def rehearse(runner: Runner) -> None:
    """Have the back end compile what it may need for any step, before somebody waits for it.

    Kernels differ by the tokens of a step, the tokens of a row, and the length of its context. So the steps
    have powers of two and numbers half-way between them as tokens, and a few contexts for each of these.
    """
    limits, longest = runner.limits, runner.limits.max_model_len
    copied = min(1, limits.num_blocks - 1)
    longer = [1 << power for power in range(7, longest.bit_length())]
    for tokens in _sizes(min(limits.max_step_tokens, limits.max_slots * longest)):
        prompts = [min(longest, tokens - begun) for begun in range(0, tokens, longest)]
        runner.execute(step_of(limits, prompts, prompts, copied))
        runner.reset()
        for context in longer if tokens < 128 else ():
            runner.execute(step_of(limits, [context], [tokens], copied))
            runner.reset()


def _sizes(most: int) -> Iterator[int]:
    """Powers of two and what lies half-way between them, and `most`."""
    size = 1
    while size < most:
        yield size
        if size > 1 and size + size // 2 < most:
            yield size + size // 2
        size *= 2
    yield most


def step_of(limits: BatchLimits, contexts: list[int], counts: list[int], copied: int = 0) -> StepPlan:
    """A row for each slot: its last `counts` of `contexts` tokens. All rows sample, with parameters of all
    kinds. `copied`: number of blocks that the step copies.

    The sequences share the blocks of one, and that uses its own again and again if the model's window lets
    the pool be smaller: the step's numbers mean nothing.
    """
    sampling = greedy(temperature=1, top_p=0.9, presence_penalty=1, logprobs=1)
    blocks = arrays.pack([number % limits.num_blocks for number in range(limits.max_blocks)])
    return StepPlan(
        step=1,
        new_slots=[
            NewSlot(
                slot=slot,
                tokens=bytes(4 * context),
                prompt_length=context,
                block_ids=blocks,
                sampling=sampling,
            )
            for slot, context in enumerate(contexts)
        ],
        rows=Rows(
            slots=arrays.pack(range(len(contexts))),
            starts=arrays.pack([context - count for context, count in zip(contexts, counts, strict=True)]),
            counts=arrays.pack(counts),
            samples=b"\1" * len(contexts),
        ),
        copies=Copies(sources=bytes(4 * copied), targets=arrays.pack(range(1, 1 + copied))),
    )


def host_offer(runner: Runner) -> HostOffer:
    """What the scheduler must know to choose between moving a block and computing it again."""
    limits, host = runner.limits, runner.host
    busy = SAMPLE_TOKENS if runner.device.type == "cpu" else limits.max_step_tokens
    tokens = min(busy, limits.max_step_tokens, limits.max_model_len)
    blocks = min(SAMPLE_BLOCKS, limits.num_blocks, host.slots)
    numbers = np.arange(blocks, dtype=np.int32)
    with torch.inference_mode():
        out = _seconds(runner, lambda: host.take(numbers, numbers))
        back = _seconds(runner, lambda: host.give(numbers, numbers))
    computing = _seconds(runner, lambda: runner.execute(prompt_step(limits, bytes(4 * tokens))))
    return HostOffer(host.slots, 1e6 * (out + back) / 2 / blocks, 1e6 * computing / tokens)


def prompt_step(limits: BatchLimits, tokens: bytes) -> StepPlan:
    """A prompt alone, all of it in one step; `tokens`: little-endian int32."""
    length = len(tokens) // 4
    blocks = arrays.pack(range(-(-length // limits.block_size)))
    sampling = greedy()
    new = NewSlot(slot=0, tokens=tokens, prompt_length=length, block_ids=blocks, sampling=sampling)
    rows = Rows(slots=bytes(4), starts=bytes(4), counts=arrays.pack([length]), samples=b"\1")
    return StepPlan(step=1, new_slots=[new], rows=rows)


def _seconds(runner: Runner, work: Callable[[], object]) -> float:
    """The least of some times, with nothing left to do on the device; the runner is as new afterwards."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)
        times.append(time.perf_counter() - started)
        runner.reset()
    return min(times)
