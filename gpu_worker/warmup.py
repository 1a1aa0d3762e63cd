"""A step of the largest size, to see what memory it takes."""

import numpy as np

from gpu_worker.batch import BatchLimits
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot, StepPlan


def full_step(limits: BatchLimits) -> StepPlan:
    """Prefills that fill the step's token budget and, as far as it goes, all slots; each row samples.

    The sequences share the blocks of one, of which there always are enough: the step's numbers mean
    nothing, its memory does.
    """
    rows = min(limits.max_slots, limits.max_step_tokens)
    length = min(limits.max_step_tokens // rows, limits.max_model_len - 1)
    lengths = np.full(rows, length)
    lengths[0] = min(length + limits.max_step_tokens - rows * length, limits.max_model_len - 1)
    sampling = SamplingParams(temperature=1, top_p=0.9, presence_penalty=1, repetition_penalty=1, logprobs=1)
    blocks = np.arange(limits.max_blocks, dtype="<i4").tobytes()
    return StepPlan(
        step=1,
        new_slots=[
            NewSlot(
                slot=slot,
                tokens=bytes(4 * length),
                prompt_length=length,
                block_ids=blocks,
                sampling=sampling,
            )
            for slot, length in enumerate(lengths.tolist())
        ],
        row_slots=np.arange(rows, dtype="<i4").tobytes(),
        row_starts=bytes(4 * rows),
        row_counts=lengths.astype("<i4").tobytes(),
        row_samples=b"\1" * rows,
    )
