"""Plans for steps of a chosen shape: a number of rows, each at a chosen position."""

from collections.abc import Iterator, Sequence

import numpy as np

from gpu_worker.arrays import packed_int32s
from gpu_worker.step.limits import BatchLimits
from proto.arrays import pack
from proto.sampling import greedy
from proto.worker_pb2 import NewSlot, Rows, StepPlan

GREEDY = greedy()


def fits(limits: BatchLimits, rows: int, context: int) -> bool:
    """Whether `rows` sequences of `context` tokens fit into the batch, each with blocks of its own."""
    blocks = -(-context // limits.block_size)
    return (
        rows <= min(limits.max_slots, limits.max_step_tokens)
        and context <= limits.max_model_len
        and rows * blocks <= limits.num_blocks
    )


def decodes(limits: BatchLimits, rows: int, context: int, steps: int, seed: int) -> Iterator[StepPlan]:
    """Plans 1 to `steps`, in each of which all of `rows` sequences decode. They end with `context` tokens.

    The prompts are never computed. The pages' contents, whatever they are, serve as their keys and values.
    """
    chance = np.random.default_rng(seed)
    blocks = -(-context // limits.block_size)
    prompt = context - steps + 1
    new = [
        NewSlot(
            slot=slot,
            tokens=packed_int32s(chance.integers(0, limits.vocab_size, prompt, np.int32)),
            prompt_length=prompt,
            block_ids=pack(range(slot * blocks, (slot + 1) * blocks)),
            sampling=GREEDY,
        )
        for slot in range(rows)
    ]
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            rows=Rows(
                slots=pack(range(rows)),
                starts=pack([prompt - 1 + step] * rows),
                counts=pack([1] * rows),
                samples=b"\1" * rows,
            ),
        )


def repeated(
    limits: BatchLimits, rows: Sequence[tuple[int, int]], steps: int, seed: int
) -> Iterator[StepPlan]:
    """Plans 1 to `steps`, which all compute the same rows and sample nothing.

    `rows`: (tokens, context) of each row, which computes the last `tokens` of `context` tokens. The pages'
    contents, whatever they are, serve as keys and values of the tokens before.
    """
    chance = np.random.default_rng(seed)
    new, begun = [], 0
    for slot, (_, context) in enumerate(rows):
        blocks = -(-context // limits.block_size)
        new.append(
            NewSlot(
                slot=slot,
                tokens=packed_int32s(chance.integers(0, limits.vocab_size, context, np.int32)),
                prompt_length=context,
                block_ids=pack(range(begun, begun + blocks)),
                sampling=GREEDY,
            )
        )
        begun += blocks
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            rows=Rows(
                slots=pack(range(len(rows))),
                starts=pack([context - count for count, context in rows]),
                counts=pack([count for count, _ in rows]),
                samples=bytes(len(rows)),
            ),
        )


def prefill(limits: BatchLimits, tokens: Sequence[int]) -> StepPlan:
    """Plan 1, which computes a whole prompt in an empty batch and samples one token."""
    blocks = -(-len(tokens) // limits.block_size)
    new = NewSlot(
        slot=0,
        tokens=pack(tokens),
        prompt_length=len(tokens),
        block_ids=pack(range(blocks)),
        sampling=GREEDY,
    )
    rows = Rows(slots=pack([0]), starts=pack([0]), counts=pack([len(tokens)]), samples=b"\1")
    return StepPlan(step=1, new_slots=[new], rows=rows)
