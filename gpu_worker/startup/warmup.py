"""Steps before the first request.

A step of the largest size shows how much memory steps take. Steps of every kind make a GPU's kernels compile.
Timed steps and copies show what it costs to compute a token and to move a block.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from gpu_worker.memory.host import HostOffer
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from proto import arrays
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, LAST, MEAN, NO_POOLING, Pooling, TokenRules
from proto.worker_pb2 import Copies, NewSlot, Rows, StepPlan

SAMPLE_TOKENS = 64
"""Tokens of the prompt that is timed on a CPU: enough to keep it busy. On a GPU a full step is timed."""

SAMPLE_BLOCKS = 4
"""Blocks that are moved when the time of a copy is taken: about what one step moves."""

REPEATS = 5
"""Times that each measurement is repeated. The least time counts, because the first run is slower."""


def full_step(limits: BatchLimits) -> StepPlan:
    """A step of the largest size: every slot holds a sequence of the longest length.

    One row prefills a chunk that takes the rest of the step's token budget. All other rows decode. Rows
    of an encoder are texts of the longest length. LoRA adapters take turns.
    """
    longest = limits.max_model_len
    if limits.bidirectional:
        texts = [longest] * min(limits.max_slots, limits.max_step_tokens // longest)
        return step_of(limits, texts, texts)
    rows = min(limits.max_slots, limits.max_step_tokens)
    step = step_of(
        limits, [longest] * rows, [min(limits.max_step_tokens - rows + 1, longest)] + [1] * (rows - 1)
    )
    if limits.adapters:
        for new in step.new_slots:
            new.adapter = limits.adapters[new.slot % len(limits.adapters)]
    return step


def rehearse(runner: Runner) -> None:
    """Run steps of many sizes, so that the back end compiles all kernels before the first request.

    Kernels differ by the tokens of a step, the tokens of a row, and the length of its context. So there are
    steps of 1, 2, 3, 4, 6, 8, 12, ... tokens, and of several contexts for each of the smaller numbers.
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
    """Powers of two below `most`, the numbers half-way between them, and `most`."""
    size = 1
    while size < most:
        yield size
        if size > 1 and size + size // 2 < most:
            yield size + size // 2
        size *= 2
    yield most


def step_of(limits: BatchLimits, contexts: list[int], counts: list[int], copied: int = 0) -> StepPlan:
    """A step with a row for each sequence. All rows sample, with parameters of all kinds. Of a classifier all
    rows classify; of an encoder and of a model without a head all are pooled.

    `contexts`: tokens of each sequence. `counts`: its last tokens, which its row computes. `copied`: number
    of blocks that the step copies.

    All sequences share the same blocks. If the pool is smaller than a block table, blocks repeat within it,
    too. So the results mean nothing.
    """
    sampling = greedy(temperature=1, top_p=0.9, typical_p=0.9, presence_penalty=1, logprobs=1)
    pooling = _pooling(limits)
    if not pooling:
        sampling.rules.CopyFrom(TokenRules(allowed_tokens=[0], biased_tokens=[0], biases=[1]))
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
                pooling=pooling,
            )
            for slot, context in enumerate(contexts)
        ],
        rows=Rows(
            slots=arrays.pack(range(len(contexts))),
            starts=arrays.pack([context - count for context, count in zip(contexts, counts, strict=True)]),
            counts=arrays.pack(counts),
            samples=_samples(limits) * len(contexts),
        ),
        copies=Copies(sources=bytes(4 * copied), targets=arrays.pack(range(1, 1 + copied))),
    )


def host_offer(runner: Runner) -> HostOffer:
    """Measure what it costs to move a block and to compute a token. The scheduler chooses between them."""
    limits, host = runner.limits, runner.host
    busy = SAMPLE_TOKENS if runner.device.type == "cpu" else limits.max_step_tokens
    tokens = min(busy, limits.max_step_tokens, limits.max_model_len)
    blocks = min(SAMPLE_BLOCKS, limits.num_blocks, host.slots)
    numbers = np.arange(blocks, dtype=np.int32)
    with torch.inference_mode():
        out = _seconds(runner, lambda: host.swap_out(numbers, numbers))
        back = _seconds(runner, lambda: host.swap_in(numbers, numbers))
    computing = _seconds(runner, lambda: runner.execute(prompt_step(limits, bytes(4 * tokens))))
    return HostOffer(host.slots, 1e6 * (out + back) / 2 / blocks, 1e6 * computing / tokens)


def prompt_step(limits: BatchLimits, tokens: bytes) -> StepPlan:
    """A step that computes a whole prompt and nothing else. `tokens`: packed little-endian int32."""
    length = len(tokens) // 4
    blocks = arrays.pack(range(-(-length // limits.block_size)))
    sampling = greedy()
    new = NewSlot(slot=0, tokens=tokens, prompt_length=length, block_ids=blocks, sampling=sampling)
    new.pooling = _pooling(limits)
    rows = Rows(slots=bytes(4), starts=bytes(4), counts=arrays.pack([length]), samples=_samples(limits))
    return StepPlan(step=1, new_slots=[new], rows=rows)


def _pooling(limits: BatchLimits) -> Pooling:
    """What the model's sequences are for."""
    if limits.num_labels:
        return CLASSIFY
    if limits.bidirectional:
        return MEAN
    return LAST if limits.headless else NO_POOLING


def _samples(limits: BatchLimits) -> bytes:
    """Tokens that a row samples at the end of its sequence."""
    return b"\0" if _pooling(limits) else b"\1"


def _seconds(runner: Runner, work: Callable[[], object]) -> float:
    """Least seconds of `REPEATS` runs of `work`, the device's work included. Resets the runner."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)
        times.append(time.perf_counter() - started)
        runner.reset()
    return min(times)
