"""Plans made by hand, for steps of a chosen shape: so many rows, each so far along."""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from gpu_worker.step.batch import BatchLimits
from proto.sampling import greedy
from proto.worker_pb2 import NewSlot, StepPlan

GREEDY = greedy()


def fits(limits: BatchLimits, rows: int, context: int) -> bool:
    """Whether so many sequences of `context` tokens can be in the batch, each with blocks of its own."""
    blocks = -(-context // limits.block_size)
    return (
        rows <= min(limits.max_slots, limits.max_step_tokens)
        and context <= limits.max_model_len
        and rows * blocks <= limits.num_blocks
    )


def decodes(limits: BatchLimits, rows: int, context: int, steps: int, seed: int) -> Iterator[StepPlan]:
    """Plans 1 to `steps`: in every one each of `rows` sequences computes a token, the last at `context`.

    Their prompts were never computed: what lies in the pages stands for their keys and values.
    """
    chance = np.random.default_rng(seed)
    blocks = -(-context // limits.block_size)
    prompt = context - steps + 1
    new = [
        NewSlot(
            slot=slot,
            tokens=chance.integers(0, limits.vocab_size, prompt, "<i4").tobytes(),
            prompt_length=prompt,
            block_ids=packed(range(slot * blocks, (slot + 1) * blocks)),
            sampling=GREEDY,
        )
        for slot in range(rows)
    ]
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            row_slots=packed(range(rows)),
            row_starts=packed([prompt - 1 + step] * rows),
            row_counts=packed([1] * rows),
            row_samples=b"\1" * rows,
        )


def repeated(
    limits: BatchLimits, rows: Sequence[tuple[int, int]], steps: int, seed: int
) -> Iterator[StepPlan]:
    """Plans 1 to `steps`: every one computes the same, of each row (tokens, context) its last tokens.

    Nothing is sampled. What lies in the pages stands for the keys and values before them.
    """
    chance = np.random.default_rng(seed)
    new, begun = [], 0
    for slot, (_, context) in enumerate(rows):
        blocks = -(-context // limits.block_size)
        new.append(
            NewSlot(
                slot=slot,
                tokens=chance.integers(0, limits.vocab_size, context, "<i4").tobytes(),
                prompt_length=context,
                block_ids=packed(range(begun, begun + blocks)),
                sampling=GREEDY,
            )
        )
        begun += blocks
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            row_slots=packed(range(len(rows))),
            row_starts=packed([context - count for count, context in rows]),
            row_counts=packed([count for count, _ in rows]),
            row_samples=bytes(len(rows)),
        )


def prefill(limits: BatchLimits, tokens: Sequence[int]) -> StepPlan:
    """Plan 1: a prompt in one step, in an empty batch; its first token is sampled."""
    blocks = -(-len(tokens) // limits.block_size)
    new = NewSlot(
        slot=0,
        tokens=packed(tokens),
        prompt_length=len(tokens),
        block_ids=packed(range(blocks)),
        sampling=GREEDY,
    )
    return StepPlan(
        step=1,
        new_slots=[new],
        row_slots=packed([0]),
        row_starts=packed([0]),
        row_counts=packed([len(tokens)]),
        row_samples=b"\1",
    )


def packed(numbers: Sequence[int] | range) -> bytes:
    """int32[], little-endian on the machines that this runs on."""
    return array("i", numbers).tobytes()
