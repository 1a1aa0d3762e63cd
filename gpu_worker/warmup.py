"""A step of the largest size, to see what memory it takes."""

import numpy as np

from gpu_worker.batch import BatchLimits
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot, StepPlan


def full_step(limits: BatchLimits) -> StepPlan:
    """Every slot at the end of the longest sequence: one decode each, and a chunk of a prefill that
    takes what is left of the step's budget. All sample, with all that sampling can be asked for.

    The sequences share the blocks of one, of which there always are enough: the step's numbers mean
    nothing, its memory does.
    """
    rows = min(limits.max_slots, limits.max_step_tokens)
    longest = limits.max_model_len
    counts = np.ones(rows, "<i4")
    counts[0] = min(limits.max_step_tokens - rows + 1, longest)
    sampling = SamplingParams(temperature=1, top_p=0.9, presence_penalty=1, repetition_penalty=1, logprobs=1)
    blocks = np.arange(limits.max_blocks, dtype="<i4").tobytes()
    return StepPlan(
        step=1,
        new_slots=[
            NewSlot(
                slot=slot,
                tokens=bytes(4 * longest),
                prompt_length=longest,
                block_ids=blocks,
                sampling=sampling,
            )
            for slot in range(rows)
        ],
        row_slots=np.arange(rows, dtype="<i4").tobytes(),
        row_starts=(longest - counts).astype("<i4").tobytes(),
        row_counts=counts.tobytes(),
        row_samples=b"\1" * rows,
    )
