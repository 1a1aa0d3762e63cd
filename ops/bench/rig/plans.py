"""Plans for steps of a chosen shape: a number of rows, each at a chosen position."""

from collections.abc import Iterator, Sequence
from typing import Any

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


def new_slot(limits: BatchLimits, slot: int, tokens: Any, first_block: int, room: int) -> NewSlot:
    """A greedy sequence that begins with `tokens`, a sequence or an array.

    It has the blocks from `first_block` on that `room` tokens take.
    """
    return NewSlot(
        slot=slot,
        tokens=packed_int32s(np.asarray(tokens)),
        prompt_length=len(tokens),
        block_ids=pack(range(first_block, first_block + -(-room // limits.block_size))),
        sampling=GREEDY,
    )


def rows_of(slots: Sequence[int], starts: Sequence[int], counts: Sequence[int], samples: bytes) -> Rows:
    """A step's rows."""
    return Rows(slots=pack(slots), starts=pack(starts), counts=pack(counts), samples=samples)


def decodes(limits: BatchLimits, rows: int, context: int, steps: int, seed: int) -> Iterator[StepPlan]:
    """Plans 1 to `steps`, in each of which all of `rows` sequences decode. They end with `context` tokens.

    The prompts are never computed. The pages' contents, whatever they are, serve as their keys and values.
    """
    chance = np.random.default_rng(seed)
    blocks = -(-context // limits.block_size)
    prompt = context - steps + 1
    prompts = [chance.integers(0, limits.vocab_size, prompt, np.int32) for _ in range(rows)]
    new = [new_slot(limits, slot, each, slot * blocks, context) for slot, each in enumerate(prompts)]
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            rows=rows_of(range(rows), [prompt - 1 + step] * rows, [1] * rows, b"\1" * rows),
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
        tokens = chance.integers(0, limits.vocab_size, context, np.int32)
        new.append(new_slot(limits, slot, tokens, begun, context))
        begun += -(-context // limits.block_size)
    counts = [count for count, _ in rows]
    starts = [context - count for count, context in rows]
    for step in range(steps):
        yield StepPlan(
            step=step + 1,
            new_slots=new if not step else (),
            rows=rows_of(range(len(rows)), starts, counts, bytes(len(rows))),
        )


def prefill(limits: BatchLimits, tokens: Sequence[int]) -> StepPlan:
    """Plan 1, which computes a whole prompt in an empty batch and samples one token."""
    new = new_slot(limits, 0, tokens, 0, len(tokens))
    return StepPlan(step=1, new_slots=[new], rows=rows_of([0], [0], [len(tokens)], b"\1"))
